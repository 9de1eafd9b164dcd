"""How pixels are removed."""

from heatproof.baselines import colours as colours
from heatproof.baselines import featurevis as featurevis
from heatproof.baselines import fills as fills
from heatproof.baselines import linear as linear
from heatproof.baselines import scrambles as scrambles
from heatproof.baselines.base import BASELINES as BASELINES
from heatproof.baselines.base import Baseline as Baseline
from heatproof.baselines.base import BaselineName as BaselineName
from heatproof.baselines.base import baseline as baseline
