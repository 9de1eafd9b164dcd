"""The parts of a run and of its results that figures are made of, whoever reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pandas as pd
from torch import Tensor

from heatproof.analysis.ranks import Key, Standings
from heatproof.runs.format import MethodFacts, ModelFacts, PlanFile, ProtocolFacts
from heatproof.runs.store import Store


class RunSource(Protocol):
    """A run directory that has been read."""

    store: Store
    rows: pd.DataFrame
    plan: PlanFile
    models: list[str]
    methods: dict[str, MethodFacts]
    protocols: dict[Key, ProtocolFacts]

    @property
    def standings(self) -> list[Standings]: ...
    @property
    def setting_labels(self) -> Mapping[Key, str]: ...
    @property
    def milliseconds(self) -> Mapping[tuple[str, str], float]: ...
    def family(self, method: str) -> str: ...
    def facts(self, model: str) -> ModelFacts | None: ...
    def kept(self, model: str) -> Any: ...


class ResultSource(Protocol):
    """The results of a run: its numbers, maps and images."""

    store: Store

    @property
    def _run(self) -> RunSource: ...
    def summary(self) -> pd.DataFrame: ...
    def agreement(self) -> pd.DataFrame: ...
    def variance(self) -> pd.DataFrame: ...
    def maps(
        self, method: str, *, model: str | None = None, protocol: str | None = None
    ) -> Iterator[tuple[str, Tensor]]: ...
    def map(
        self, method: str, sample: str, *, model: str | None = None, protocol: str | None = None
    ) -> Tensor: ...
    def image(
        self, sample: str, *, model: str | None = None, protocol: str | None = None
    ) -> Tensor: ...
