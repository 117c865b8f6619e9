"""MNIST: 70,000 handwritten digits, 28 x 28 grey pixels, in torchvision's layout (`MNIST/raw`)."""

from __future__ import annotations

from dpbench.datasets._idx import IdxSource, idx_files

NUMERICS = 1

dataset = IdxSource(
    name="mnist",
    title="MNIST handwritten digits",
    files=idx_files(
        "MNIST/raw",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        published=(
            ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
            ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
            ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
            ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
        ),
        unpacked=(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
    sha256="2d2eea51268b558b791853af50fc929efcf1a64a23c5ad1eefa0c3b2309c56fd",
    licence="none stated by the authors; often given as CC BY-SA 3.0",
    citation=(
        "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document recognition,"
        " Proceedings of the IEEE 86(11), 1998"
    ),
    url="http://yann.lecun.com/exdb/mnist/",
)
