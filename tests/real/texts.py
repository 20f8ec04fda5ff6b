"""A megabyte of text: the prose and the code of this repository, and words in 20 scripts.

A script has a sentence that people write, and words that are drawn from its letters. Some
of those no language has; a tokenizer must cut them all the same.
"""

import random
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROSE_CHARACTERS = 350_000
CODE_CHARACTERS = 350_000
SCRIPT_BYTES = 16_000

# The name of a script, a sentence, and the first and last code points of its letters and
# marks.
SCRIPTS: tuple[tuple[str, str, tuple[tuple[int, int], ...]], ...] = (
    (
        "Latin",
        "Tiếng Việt: con mèo uống nước, und die Straße führt übers Feld.",
        ((0x61, 0x7A), (0xC0, 0x17F), (0x1EA0, 0x1EF9), (0x300, 0x309)),
    ),
    (
        "Greek",
        "Η γάτα πίνει νερό και το σκυλί κοιμάται.",
        ((0x391, 0x3A1), (0x3AC, 0x3CE)),
    ),
    (
        "Cyrillic",
        "Кошка пьёт воду, а собака спит у двери.",
        ((0x410, 0x44F), (0x400, 0x40F)),
    ),
    (
        "Armenian",
        "Կատուն ջուր է խմում, իսկ շունը քնած է։",
        ((0x531, 0x556), (0x561, 0x587)),
    ),
    ("Hebrew", "החתול שותה מים והכלב ישן ליד הדלת.", ((0x5D0, 0x5EA), (0x5B0, 0x5BC))),
    (
        "Arabic",
        "القطة تشرب الماء، والكلب نائم عند الباب.",
        ((0x621, 0x64A), (0x64B, 0x652)),
    ),
    (
        "Devanagari",
        "बिल्ली पानी पीती है और कुत्ता सो रहा है।",
        ((0x904, 0x939), (0x93E, 0x94D)),
    ),
    ("Bengali", "বিড়াল জল খায় আর কুকুর ঘুমায়।", ((0x995, 0x9A8), (0x9BE, 0x9C4))),
    ("Gurmukhi", "ਬਿੱਲੀ ਪਾਣੀ ਪੀਂਦੀ ਹੈ।", ((0xA15, 0xA28), (0xA3E, 0xA42))),
    ("Tamil", "பூனை தண்ணீர் குடிக்கிறது.", ((0xB85, 0xB8A), (0xBAE, 0xBB9), (0xBBE, 0xBC2))),
    ("Telugu", "పిల్లి నీళ్ళు తాగుతుంది.", ((0xC15, 0xC28), (0xC3E, 0xC44))),
    ("Thai", "แมวดื่มน้ำและสุนัขนอนหลับ", ((0xE01, 0xE2E), (0xE30, 0xE3A), (0xE40, 0xE4E))),
    ("Lao", "ແມວດື່ມນ້ຳ", ((0xE94, 0xE97), (0xE99, 0xE9F), (0xEB0, 0xEB9))),
    ("Tibetan", "བྱི་ལས་ཆུ་འཐུང་གི་འདུག།", ((0xF40, 0xF47), (0xF49, 0xF6C), (0xF71, 0xF7D))),
    ("Georgian", "კატა წყალს სვამს, ძაღლს კი სძინავს.", ((0x10D0, 0x10FA),)),
    ("Ethiopic", "ድመቷ ውሃ ትጠጣለች።", ((0x1200, 0x1248), (0x1260, 0x1288))),
    ("Khmer", "ឆ្មាផឹកទឹក។", ((0x1780, 0x17B3), (0x17B6, 0x17C5))),
    ("Han", "猫在喝水，狗在门口睡觉。貓喝水，狗睡覺。", ((0x4E00, 0x9FA5),)),
    (
        "Kana",
        "ねこはみずをのみ、イヌはドアのそばでねむる。",
        ((0x3041, 0x3096), (0x30A1, 0x30FA)),
    ),
    ("Hangul", "고양이가 물을 마시고 개는 문 옆에서 잔다.", ((0xAC00, 0xD7A3),)),
)
_BETWEEN = (
    " ",
    " ",
    " ",
    " ",
    "  ",
    "\n",
    "\t",
    ", ",
    ". ",
    " 7 ",
    "-",
    "’",
    " (",
    ") ",
    "! ",
    "🙂",
)


def contents(patterns: Iterable[str], characters: int) -> str:
    """Return the beginning of the files of some patterns, one after the other."""
    paths = (path for pattern in patterns for path in sorted(REPOSITORY.glob(pattern)))
    return "".join(path.read_text("utf-8") for path in paths)[:characters]


def script_text(name: str) -> str:
    """Return a text in one script, about `SCRIPT_BYTES` long: the same in every run."""
    sentence, ranges = next(
        (text, ranges) for script, text, ranges in SCRIPTS if script == name
    )
    chance = random.Random(f"text in {name}")
    letters = [chr(point) for first, last in ranges for point in range(first, last + 1)]
    parts = [sentence, "\n\n"]
    nbytes = 0
    while nbytes < SCRIPT_BYTES:
        word = "".join(chance.choices(letters, k=chance.randrange(1, 9))) + chance.choice(
            _BETWEEN
        )
        parts.append(word)
        nbytes += len(word.encode())
    return "".join(parts)


def all_texts() -> dict[str, str]:
    """Return a megabyte of texts, each by its name."""
    texts = {
        "prose": contents(("README.md", "docs/*.md"), PROSE_CHARACTERS),
        "code": contents(
            ("src/**/*.py", "csrc/*.c", "csrc/*.h", "tests/**/*.py"), CODE_CHARACTERS
        ),
    }
    return texts | {name: script_text(name) for name, _, _ in SCRIPTS}
