"""How a run ends early: at SIGTERM, or when its time is over."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

REMIND_SECONDS = 30.0  # enough to write what is computed


class Terminated(KeyboardInterrupt):
    """The process has to end, because of SIGTERM or because its time is over."""


@contextmanager
def stopped_by_sigterm(minutes: float | None) -> Iterator[None]:
    """Raise ``Terminated`` at SIGTERM, or after some minutes.

    Python discards an exception that a signal raises in a destructor, so the signal is repeated
    until the block ends; and its own parser turns one into a ``SystemError``.
    """
    requested = threading.Event()
    ended = threading.Event()
    sending = threading.Lock()

    def stop(*_: object) -> None:
        requested.set()
        if not ended.is_set():
            raise Terminated

    def send() -> None:
        with sending:  # so that no signal is sent once the handler is gone
            if ended.is_set():
                return
            if hasattr(signal, "pthread_kill"):  # it also wakes a thread that sleeps
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            else:
                _thread.interrupt_main(signal.SIGTERM)

    def remind() -> None:
        if minutes is not None and not requested.wait(60 * minutes):
            send()
        requested.wait()
        while not ended.wait(REMIND_SECONDS):
            send()

    before = signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=remind, daemon=True).start()
    try:
        yield
    except SystemError as error:
        if not requested.is_set():
            raise
        raise Terminated from error
    finally:
        ended.set()
        requested.set()  # so that the thread ends
        with sending:
            signal.signal(signal.SIGTERM, before)
