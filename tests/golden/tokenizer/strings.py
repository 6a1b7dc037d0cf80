"""Texts that tokenizers get wrong: the same ones, in the same order, every time."""
import random

SCRIPTS = [
    "The quick brown fox jumps over the lazy dog.", "Größe, Straße, Übermut: ß ẞ", "Ça va? L'été, où, naïve œuvre",
    "Съешь же ещё этих мягких французских булок", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία", "בדיקה של טקסט בעברית עם ניקוד שָׁלוֹם",
    "نص حكيم له سر قاطع وذو شأن عظيم", "यह हिन्दी में एक वाक्य है। क्षत्रिय", "বাংলা ভাষায় একটি বাক্য।", "தமிழ் மொழியில் ஒரு வாக்கியம்",
    "తెలుగులో ఒక వాక్యం", "ಕನ್ನಡದಲ್ಲಿ ಒಂದು ವಾಕ್ಯ", "മലയാളത്തിൽ ഒരു വാക്യം", "ਪੰਜਾਬੀ ਵਿੱਚ ਇੱਕ ਵਾਕ", "ગુજરાતીમાં એક વાક્ય",
    "ประโยคภาษาไทยไม่มีช่องว่าง", "ພາສາລາວ", "မြန်မာဘာသာ စာကြောင်း", "ភាសាខ្មែរ មួយឃ្លា", "བོད་སྐད་ཡིག", "ქართული ენა",
    "Հայերեն նախադասություն", "አማርኛ ቋንቋ ነው።", "天地玄黃，宇宙洪荒。日月盈昃", "简体中文的一句话，没有空格。", "いろはにほへと ちりぬるを",
    "カタカナ・ﾊﾝｶｸ ー", "한국어 문장입니다. 각각", "Tiếng Việt có dấu: ường, ễ, ạ", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ", "𐌲𐌿𐍄𐌹𐍃𐌺 𐍂𐌰𐌶𐌳𐌰",
    "𒀭𒂗𒆤 𓀀𓁐𓂀", "සිංහල භාෂාව", "ⴰⵎⴰⵣⵉⵖ", "İstanbul'da ığdır ŞĞ", "ǅungla ǆ ﬁ ﬀ ﬆ ſt", "zażółć gęślą jaźń",
]
EMOJI = [
    "😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇯🇵🇺🇸", "❤️", "☺︎", "👨🏿‍🚀", "🤷🏼‍♀️", "1️⃣2️⃣", "🧑‍🤝‍🧑", "™️©®", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🫠🪿",
]
SPACES = [
    " ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\u00a0", "\u00a0\u00a0", "\u1680", "\u2003", "\u2009 ",
    "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u3000\u3000", "\ufeff", "\u0085", "\u180e", "\x1c", "\x1f", "\x00",
    " \n", "\n ", " \n \n ", "\t \t", "      ", " " * 16, " " * 33, "\n" * 40, "\t" * 35, " \r\n\t", "  \u3000 ",
]
DIGITS = [
    "0", "42", "007", "1234567890", "3.14159", "1,000,000", "2024-05-06T07:08:09Z", "0xDEADBEEF", "1e-10", "²³¹", "½ ¾ Ⅷ ⅻ", "٠١٢٣٤٥٦٧٨٩",
    "०१२३", "１２３４", "①②③", "𝟘𝟙𝟚", "12 345", " 1", "a1b22c333d4444", "１2３", "٣.١٤", "10⁻³", "🄀 ⒈ ㉑ 〇 三", "+1 (555) 010-9999",
]
CONTRACTIONS = [
    "I'm", "you're", "he's", "they'll", "we've", "I'd", "don't", "DON'T", "I'M", "YOU'RE", "IT'S", "THEY'LL", "WE'VE", "I'D", "'s", "'S", "'re",
    "'rest", "'tis", "'llama", "'vet", "o'clock", "rock'n'roll", "''s", " 's", "'ſ", "x'ſt", "it’s", "l'l", "'lL", "'rE", "'Ve", "'", "''", "' s", "'d'd'd",
]
CODE = [
    "def f(x: int) -> str:\n    return f\"{x!r}\"\n", "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; }", "#include <stdio.h>\nint main(void) {\n\treturn 0;\n}",
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x_%';", "{\"key\": [1, 2.5, null, true], \"s\": \"\\u00e9\"}", "<div class=\"a b\"><h1>T</h1></div>",
    "if (a && b || !c) return ~d ^ e;", "std::vector<std::unique_ptr<T>>&& v", "$ rm -rf ./build && cmake -S . -B build", "x = y ** 2 // 3 % 4  # note",
    "https://example.org/a/b?c=d&e=%20#f", "C:\\Users\\me\\file.txt", "user_name@example.com", "fn main() { println!(\"{:?}\", x); }", "a+b=c; $x^2$ |y| <z>",
    "\\begin{align}\n  x &= \\frac{1}{2}\\\\\n\\end{align}", "snake_case camelCase PascalCase kebab-case SCREAMING_CASE", "0b1010 & 0o17 | 0xFF", "```python\nprint('hi')\n```",
    "<table>\n<tr><td>1</td></tr>\n</table>", "<b>bold</b> <i>it</i> </s> <s>", "a\t=\tb\n\t\tc", "...???!!!---===***", "«quote» „quote“ ‚x‘ ‹y›", "~^`|\\+=<>$",
]
MARKERS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<unk>", "<pad>", "<mask>", "<unused7>",
    "<unused6241>", "<0x0A>", "<|im_start|>user\nhi<|im_end|>\n", "<start_of_turn>model\nhi<end_of_turn>\n", "<|im_end", "<|im_end|", "im_end|>",
    "<repo_name>", "<|im_start|><|im_start|>", "<|<|im_end|>|>", "<start_of_turn> ", " <end_of_turn>", "<eos", "[multimodal]", "▁", "▁▁", "a▁b", "<s>",
    "[INST]", "<|eot_id|>", "<file_sep>", "<empty_output>",
]
LONG = [
    "a" * 300, "ab" * 150, "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 2, "0" * 100, "=" * 130, "-" * 65, "é" * 80, "中" * 70,
    "abcdefghijklmnopqrstuvwxyz" * 8, "ha" * 60, "!" * 90, "loooooooooooooong", "A" * 77 + "b", "_" * 50, "😀" * 25, "zz9" * 40, "e\u0301" * 30, "\u0301" * 20,
]
# Composed and decomposed, compatibility forms, Hangul jamo: what normalization changes or must not.
FORMS = [
    "é", "e\u0301", "Å Å Å A\u030a", "q\u0323\u0307 q\u0307\u0323", "각 \u1100\u1161\u11a8", "Ω Ω", "ﬁ ＡＢＣ", "ก็ น้ำ", "\u0958 क\u093c",
    "\u0344", "a\u0300\u0301\u0302b", "\u2126hm \u212aelvin", "豈 更", "\u0301x", "= \u0338", ">\u0338", "\U0001d15e", "ế e\u0302\u0301", "ｶﾞ カ\u3099",
]
ALL = [SCRIPTS, EMOJI, SPACES, DIGITS, CONTRACTIONS, CODE, MARKERS, LONG, FORMS]


def random_text(rng):
    """Pieces of the above, cut and put together."""
    parts = []
    for _ in range(rng.randint(1, 6)):
        part = rng.choice(rng.choice(ALL[:7] + ALL[8:]))
        if len(part) > 12 and rng.random() < 0.7:
            begin = rng.randrange(len(part) - 6)
            part = part[begin:begin + rng.randint(2, 12)]
        parts.append(part)
        if rng.random() < 0.3:
            parts.append(rng.choice(SPACES[:14]))
    return "".join(parts)


def random_code_points(rng):
    planes = [(0x20, 0x7f), (0x80, 0x250), (0x250, 0x800), (0x800, 0x2000), (0x2000, 0x3100), (0x3100, 0xd800), (0xe000, 0x10000), (0x10000, 0x20000), (0x20000, 0x110000), (0, 0x20)]
    return "".join(chr(rng.randrange(*rng.choice(planes))) for _ in range(rng.randint(1, 10)))


def texts(num_random, seed):
    rng = random.Random(seed)
    result = [""] + [text for group in ALL for text in group]
    result += [random_text(rng) for _ in range(num_random * 3 // 4)]
    result += [random_code_points(rng) for _ in range(num_random // 4)]
    return list(dict.fromkeys(result))
