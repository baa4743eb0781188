"""The figures that the paper published: P@20, nDCG@20 and MAP@1000, by collection and row; none where it gave none."""

COLLECTIONS = {"robust04": "Robust04", "gov2": "GOV2"}
MEASURES = ("P@20", "nDCG@20", "AP@1000")

PUBLISHED: dict[str, dict[str, tuple[float, float, float]]] = {
    "robust04": {
        "bm25+rm3": (0.3821, 0.4407, 0.2903),
        "dph+kl": (0.3924, 0.4397, 0.3046),
        "filtered-google-questions": (0.4130, 0.4860, 0.2390),
        "bert-base-maxp": (0.4070, 0.4670, 0.2320),
        "bert-base": (0.4430, 0.5109, 0.3407),
        "bert-qe": (0.4602, 0.5245, 0.3571),
        "calibrator": (0.4526, 0.5180, 0.3480),
        "scorer": (0.4500, 0.5101, 0.3530),
        "cobert": (0.4629, 0.5213, 0.3631),
        "no-residual": (0.4554, 0.5102, 0.3567),
        "initial-order": (0.4422, 0.5029, 0.3457),
        "reversed-order": (0.4454, 0.5026, 0.3429),
    },
    "gov2": {
        "bm25+rm3": (0.5634, 0.4851, 0.3350),
        "dph+kl": (0.5896, 0.5122, 0.3605),
        "bert-base": (0.5725, 0.5040, 0.3531),
        "bert-qe": (0.5997, 0.5206, 0.3574),
        "calibrator": (0.5802, 0.5026, 0.3550),
        "scorer": (0.6493, 0.5640, 0.3993),
        "cobert": (0.6668, 0.5781, 0.4022),
        "no-residual": (0.6326, 0.5484, 0.3951),
        "initial-order": (0.6211, 0.5308, 0.3728),
        "reversed-order": (0.6322, 0.5429, 0.3799),
    },
}
