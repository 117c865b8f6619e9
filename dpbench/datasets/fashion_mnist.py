"""Fashion-MNIST: 70,000 pictures of clothes, 28 x 28 grey pixels, in torchvision's layout (`FashionMNIST/raw`)."""

from __future__ import annotations

from dpbench.datasets._idx import IdxSource, idx_files

NUMERICS = 1

dataset = IdxSource(
    name="fashion_mnist",
    title="Fashion-MNIST articles of clothing",
    files=idx_files(
        "FashionMNIST/raw",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        published=(
            ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
            ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
            ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
            ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
        ),
        unpacked=(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    sha256="09fa7d99c94fc2ddd05677963cc851153d66fa9b15e5a22893f475c900d2b7ab",
    licence="MIT",
    citation=(
        "H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine learning"
        " algorithms, 2017, arXiv:1708.07747"
    ),
    url="https://github.com/zalandoresearch/fashion-mnist",
)
