"""How it is explained: one file a family."""

from heatproof.methods import bottleneck as bottleneck
from heatproof.methods import cams as cams
from heatproof.methods import controls as controls
from heatproof.methods import deepshap as deepshap
from heatproof.methods import extremal as extremal
from heatproof.methods import gradients as gradients
from heatproof.methods import guided as guided
from heatproof.methods import intrinsic as intrinsic
from heatproof.methods import perturbation as perturbation
from heatproof.methods import relevance as relevance
from heatproof.methods import surrogates as surrogates
from heatproof.methods import transformers as transformers
from heatproof.methods import transforms as transforms
from heatproof.methods.base import GROUPS as GROUPS
from heatproof.methods.base import METHODS as METHODS
from heatproof.methods.base import TRANSFORMS as TRANSFORMS
from heatproof.methods.base import Expression as Expression
from heatproof.methods.base import at_their_layers as at_their_layers
from heatproof.methods.base import method as method
from heatproof.methods.base import parse_methods as parse_methods
from heatproof.methods.explain import Explainer as Explainer
from heatproof.methods.explain import explain as explain
