"""Makes `radixrt/constrained/regex/unicode.bin`, the sets of Unicode properties, from node's RegExp.

    python -m tests.constrained.regex.unicode_tables

node has the properties that ECMA-262 names and no list of scripts, so the names of scripts stand here. Characters that
are assigned since an older version of Unicode come from Python's `unicodedata`, of 3.11 for the file that is committed:
programs that read answers have older tables than node's.
"""

from __future__ import annotations

import json
import subprocess
import unicodedata
import zlib
from itertools import groupby
from pathlib import Path
from typing import Final

from radixrt.constrained.regex.charset import EVERY, CharSet

TARGET: Final = Path(__file__).parents[3] / "radixrt" / "constrained" / "regex" / "unicode.bin"
_CATEGORIES: Final = """
Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn
"""
_BINARY: Final = """
ASCII_Hex_Digit AHex Alphabetic Alpha Bidi_Control Bidi_C Bidi_Mirrored Bidi_M Case_Ignorable CI Cased
Changes_When_Casefolded CWCF Changes_When_Casemapped CWCM Changes_When_Lowercased CWL Changes_When_NFKC_Casefolded
CWKCF Changes_When_Titlecased CWT Changes_When_Uppercased CWU Dash Default_Ignorable_Code_Point DI Deprecated Dep
Diacritic Dia Emoji Emoji_Component EComp Emoji_Modifier EMod Emoji_Modifier_Base EBase Emoji_Presentation EPres
Extended_Pictographic ExtPict Extender Ext Grapheme_Base Gr_Base Grapheme_Extend Gr_Ext Hex_Digit Hex
IDS_Binary_Operator IDSB IDS_Trinary_Operator IDST ID_Continue IDC ID_Start IDS Ideographic Ideo Join_Control Join_C
Logical_Order_Exception LOE Lowercase Lower Math Noncharacter_Code_Point NChar Pattern_Syntax Pat_Syn
Pattern_White_Space Pat_WS Quotation_Mark QMark Radical Regional_Indicator RI Sentence_Terminal STerm Soft_Dotted SD
Terminal_Punctuation Term Unified_Ideograph UIdeo Uppercase Upper Variation_Selector VS White_Space space
XID_Continue XIDC XID_Start XIDS
"""
_SCRIPTS: Final = """
Adlam Adlm Aghb Ahom Anatolian_Hieroglyphs Arab Arabic Armenian Armi Armn Avestan Avst Bali Balinese Bamu Bamum Bass
Bassa_Vah Batak Batk Beng Bengali Berf Beria_Erfe Bhaiksuki Bhks Bopo Bopomofo Brah Brahmi Brai Braille Bugi
Buginese Buhd Buhid Cakm Canadian_Aboriginal Cans Cari Carian Caucasian_Albanian Chakma Cham Cher Cherokee
Chorasmian Chrs Common Copt Coptic Cpmn Cprt Cuneiform Cypriot Cypro_Minoan Cyrillic Cyrl Deseret Deva Devanagari
Diak Dives_Akuru Dogr Dogra Dsrt Dupl Duployan Egyp Egyptian_Hieroglyphs Elba Elbasan Elym Elymaic Ethi Ethiopic
Gara Garay Geor Georgian Glag Glagolitic Gong Gonm Goth Gothic Gran Grantha Greek Grek Gujarati Gujr Gukh
Gunjala_Gondi Gurmukhi Guru Gurung_Khema Han Hang Hangul Hani Hanifi_Rohingya Hano Hanunoo Hatr Hatran Hebr Hebrew
Hira Hiragana Hluw Hmng Hmnp Hung Imperial_Aramaic Inherited Inscriptional_Pahlavi Inscriptional_Parthian Ital Java
Javanese Kaithi Kali Kana Kannada Katakana Kawi Khar Kharoshthi Khitan_Small_Script Khmer Khmr Khoj Khojki Khudawadi
Kirat_Rai Kits Knda Krai Kthi Lana Lao Laoo Latin Latn Lepc Lepcha Limb Limbu Lina Linb Linear_A Linear_B Lisu Lyci
Lycian Lydi Lydian Mahajani Mahj Maka Makasar Malayalam Mand Mandaic Mani Manichaean Marc Marchen Masaram_Gondi
Medefaidrin Medf Meetei_Mayek Mend Mende_Kikakui Merc Mero Meroitic_Cursive Meroitic_Hieroglyphs Miao Mlym Modi Mong
Mongolian Mro Mroo Mtei Mult Multani Myanmar Mymr Nabataean Nag_Mundari Nagm Nand Nandinagari Narb Nbat New_Tai_Lue
Newa Nko Nkoo Nshu Nushu Nyiakeng_Puachue_Hmong Ogam Ogham Ol_Chiki Ol_Onal Olck Old_Hungarian Old_Italic
Old_North_Arabian Old_Permic Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Onao Oriya Orkh Orya
Osage Osge Osma Osmanya Ougr Pahawh_Hmong Palm Palmyrene Pau_Cin_Hau Pauc Perm Phag Phags_Pa Phli Phlp Phnx
Phoenician Plrd Prti Psalter_Pahlavi Qaac Qaai Rejang Rjng Rohg Runic Runr Samaritan Samr Sarb Saur Saurashtra Sgnw
Sharada Shavian Shaw Shrd Sidd Siddham Sidetic Sidt SignWriting Sind Sinh Sinhala Sogd Sogdian Sogo Sora
Sora_Sompeng Soyo Soyombo Sund Sundanese Sunu Sunuwar Sylo Syloti_Nagri Syrc Syriac Tagalog Tagb Tagbanwa Tai_Le
Tai_Tham Tai_Viet Tai_Yo Takr Takri Tale Talu Tamil Taml Tang Tangsa Tangut Tavt Tayo Telu Telugu Tfng Tglg Thaa
Thaana Thai Tibetan Tibt Tifinagh Tirh Tirhuta Tnsa Todhri Todr Tolong_Siki Tols Toto Tulu_Tigalari Tutg Ugar
Ugaritic Unknown Vai Vaii Vith Vithkuqi Wancho Wara Warang_Citi Wcho Xpeo Xsux Yezi Yezidi Yi Yiii Zanabazar_Square
Zanb Zinh Zyyy Zzzz
"""
_NODE: Final = r"""
const names = JSON.parse(require("fs").readFileSync(0, "utf8"));
const found = {version: process.versions.unicode, sets: {}};
for (const name of names) {
  const pattern = new RegExp(`^\\p{${name}}$`, "u");
  const edges = [];
  let inside = false;
  for (let point = 0; point < 0x110000; point++) {
    if (point === 0xD800) point = 0xE000;
    const now = pattern.test(String.fromCodePoint(point));
    if (now !== inside) { edges.push(point); inside = now; }
  }
  if (inside) edges.push(0x110000);
  found.sets[name] = edges;
}
console.log(JSON.stringify(found));
"""


def sets_of_node(names: list[str]) -> dict[str, list[int]]:
    """The edges of each property, where membership changes; surrogates are no characters."""
    run = subprocess.run(["node", "-e", _NODE], input=json.dumps(names), capture_output=True, text=True, check=True)
    found: dict[str, list[int]] = json.loads(run.stdout)["sets"]
    return found


def assigned() -> list[int]:
    """The edges of the characters that Python's `unicodedata` knows."""
    points = [point for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF]
    edges: list[int] = []
    for is_assigned, run in groupby(points, lambda point: unicodedata.category(chr(point)) != "Cn"):
        members = list(run)
        if is_assigned:
            edges += (members[0], members[-1] + 1)
    return edges


def words(by_edges: dict[tuple[int, ...], int], sets: dict[str, int]) -> dict[str, CharSet]:
    """What Python's re and Rust's regex take for `\\w`, and what any version of any of them may take."""
    ordered = list(by_edges)

    def of(*names: str) -> CharSet:
        edges = [ordered[sets[name]] for name in names]
        return CharSet.ranges((low, high - 1) for one in edges for low, high in zip(one[::2], one[1::2]))

    letters = [f"gc={name}" for name in _CATEGORIES.split() if name[0] == "L"]
    python = of(*letters, "gc=Nd", "gc=Nl", "gc=No") | CharSet.of("_")
    rust = of("Alphabetic", "gc=Mn", "gc=Mc", "gc=Me", "gc=Nd", "gc=Pc", "Join_Control")
    return {"PythonWord": python, "RustWord": rust, "AnyWord": python | rust | (EVERY - of("Stable"))}


def main() -> None:
    names = [*(f"gc={name}" for name in _CATEGORIES.split()), *_BINARY.split()]
    names += [f"{kind}={script}" for kind in ("sc", "scx") for script in _SCRIPTS.split()]
    by_edges: dict[tuple[int, ...], int] = {}
    sets = {name: by_edges.setdefault(tuple(edges), len(by_edges)) for name, edges in sets_of_node(names).items()}
    sets["Stable"] = by_edges.setdefault(tuple(assigned()), len(by_edges))
    sets |= {name: by_edges.setdefault(charset.edges, len(by_edges)) for name, charset in words(by_edges, sets).items()}
    deltas = [" ".join(str(b - a) for a, b in zip((0, *edges), edges)) for edges in by_edges]
    packed = zlib.compress(json.dumps({"names": sets, "deltas": deltas}, separators=(",", ":")).encode(), 9)
    TARGET.write_bytes(packed)
    print(f"{len(sets)} names, {len(deltas)} sets, {len(packed)} bytes")


if __name__ == "__main__":
    main()
