"""The licence of every package that an installed Co-BERT needs to run, as the packages' own metadata tell.

    make licences

Fails on one that is not among those that may be used beside Apache-2.0, and on one that tells none.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement

# As metadata write them: SPDX names, classifiers or free text. MPL-2.0 concerns files that we do not change.
ALLOWED = [
    r"(the )?apache([- ](software )?licen[cs]e)?,?[- ]?(version )?(2(\.0)?)?( licen[cs]e)?",
    r"(the )?mit([- ]licen[cs]e)?|mit-0|mit-cmu",
    r"((new|modified) )?bsd([- ][23]-clause)?( licen[cs]e)?|0bsd",
    r"psf-2\.0|python-2\.0|python software foundation license|cnri-python",
    r"isc( license)?|zlib|bsl-1\.0|(the )?unlicense|cc0-1\.0|hpnd",
    r"mpl-2\.0|mozilla public license 2\.0",
]


def needed(name: str, found: dict[str, str] | None = None) -> dict[str, str]:
    """Every package that `name` needs here, without extras, and what it says of its licence."""
    found = {} if found is None else found
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        key = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if key in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        try:
            found[key] = licence_of(key)
        except PackageNotFoundError:
            found[key] = "not installed"
            continue
        needed(key, found)
    return found


def licence_of(name: str) -> str:
    """What a package's metadata say, the exact field first; empty if they say nothing."""
    said = distribution(name).metadata
    expression = said.get("License-Expression", "").strip()
    if expression:
        return expression
    lines = [line for line in said.get_all("Classifier", []) if line.startswith("License ::")]
    classified = [line.rsplit(" :: ", 1)[-1] for line in lines if not line.endswith("OSI Approved")]
    if classified:
        return " AND ".join(classified)
    return said.get("License", "").strip().split("\n")[0]


def is_allowed(licence: str) -> bool:
    """Whether all licences that apply together are allowed, and one at least of those to choose from."""
    every = [part for part in re.split(r"\s+AND\s+|;\s*", licence) if part]
    return bool(every) and all(any(map(_is_known, re.split(r"\s+OR\s+", part))) for part in every)


def _is_known(licence: str) -> bool:
    plain = re.sub(r"\s+WITH\s+.*|\s+\(.*\)$", "", licence.strip()).strip("() ").lower()
    return any(re.fullmatch(pattern, plain) for pattern in ALLOWED)


def main() -> None:
    found = needed("modeling-cobert")
    refused = [name for name, licence in sorted(found.items()) if not is_allowed(licence)]
    for name, licence in sorted(found.items()):
        print(f"{name:<26} {licence or 'no licence told'}{'   NOT ALLOWED' if name in refused else ''}")
    print(f"{len(found)} packages, {len(refused)} with a licence that is not on the list")
    sys.exit(bool(refused))


if __name__ == "__main__":
    main()
