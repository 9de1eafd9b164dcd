"""The network under inspection."""
