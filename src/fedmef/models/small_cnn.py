"""Three convolutions: enough for the 8x8 digits, quick on one core, and right for images of any size."""

from torch import Tensor, nn

from fedmef.models.resnet import initialise_convolutions


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class SmallCNN(nn.Module):
    """3x3 convolutions of `width`, twice and four times `width` channels, and a linear classifier."""

    def __init__(self, *, classes: int, channels: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _convolution(channels, width),
            _convolution(width, 2 * width),
            nn.MaxPool2d(2),
            _convolution(2 * width, 4 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(4 * width, classes)
        initialise_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [batch, classes] of images [batch, channels, height, width]."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


def small_cnn(*, classes: int, channels: int = 1, width: int = 32) -> SmallCNN:
    """The network of the digits demo."""
    return SmallCNN(classes=classes, channels=channels, width=width)
