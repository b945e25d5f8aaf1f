from __future__ import annotations

from collections.abc import Iterator

import pytest
from spmd_ranks import Ranks, started


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Four processes that know each other, for all tests of this folder."""
    with started(tmp_path_factory.mktemp("ranks")) as found:
        yield found
