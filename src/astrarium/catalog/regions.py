"""Classes of regions: what clouds call their places, in five words."""

from __future__ import annotations

import re
from typing import Final

ANY_REGION: Final = "any"  # where a list names no region
REGIONS: Final = ("us", "europe", "asia", "other")

# The first pattern that is found in the name of a region, in lower case, decides.
_CLASSES: Final = (
    (r"^\(|^default$|^any$|^$", ANY_REGION),
    (r"canada|^ca-|^ca$|, ca,|^ca, na|tor1|northamerica-northeast|^bhs$", "other"),
    (r"^us|usa-|, us,|eastus|centralus|westus|east coast|north-america", "us"),
    (r"australia|^au-|^au$|syd|melbourne|^ap-southeast-2$", "other"),
    (r"southamerica|^sa-|^br-|^mx-|^af-|^me-|^il-|israel", "other"),
    (r"^eu|^uk|^no-|^it-|^fr-|, eu$|norway|finland|^fin-|ams|^(fra|gra|lon|waw)$", "europe"),
    (r"netherlands|germany|france|poland|sweden|switzerland|northeurope|westeurope", "europe"),
    (r"^(cz|dk|fr|is|nl|no|ro|se|de|fi)$", "europe"),
    (r"^ap-|^asia|^jp-|, as$|korea|tyo|japan|india|singapore|^(in|jp|sg)$", "asia"),
)


def region_class(region: str) -> str | None:
    """The class of a region, or None if its name says nothing."""
    name = region.strip().lower()
    return next((word for pattern, word in _CLASSES if re.search(pattern, name)), None)
