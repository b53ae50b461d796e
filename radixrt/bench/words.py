"""English-like text of a given length in tokens, from a seeded generator, without a tokenizer."""

import random

TOKENS_PER_WORD = 1.109
"""Tokens that SmolLM2's tokenizer needs for one word of `prose`, its share of the full stops included.

Measured over 50,000 words (1.108 to 1.109). A report never relies on it: its token counts are the server's own `usage`.
"""

_TEXT = """
about above across action after again against age air all almost alone along already also always among amount animal
answer any area around arm art ask away back bad bank base beautiful because become bed before begin behind being
believe below best better between big bird black blood blue board boat body book both box boy bring brother build
building business but call came car card care carry case catch cause center certain chance change child choice church
city class clear close cold color common company complete consider control corner cost could country course cover
create cross cut dark daughter day dead deal death decide deep did difference different direction doctor dog door
doubt down draw dream drive dry during each early earth east easy eat edge effect either else end energy enough even
evening ever every example experience eye face fact fall family far farm fast father fear feel few field fight figure
fill final find fine finger fire first fish floor flow follow food foot for force form forward four free friend from
front full future game garden gave general get girl give glass go gold gone good government great green ground group
grow half hand happen hard have head hear heart heavy help here high hill history hold hole home hope horse hot hour
house how human hundred idea important inside interest into iron island job join just keep kept kind king knew know
land language large last late laugh law lead learn leave left letter level life light like line list listen little
live long look lost love low machine made main make man many map mark market matter may mean measure meet member men
middle might mile mind minute moment money month moon more morning most mother mountain move much music must name
nation nature near need never new next night north note nothing notice now number object ocean off office often old
once only open order other out over own page pain paper part party pass past path pattern people perhaps person
picture piece place plain plan plant play point poor position power present problem produce public pull put question
quick quiet rain reach read ready real reason record red remember rest result return rich right rise river road rock
room round rule run said same save school science sea season second see seem sense serve set seven several shape ship
short should show side silver simple since sing sister sit size skin sleep slow small snow some song soon sound south
space speak special spring stand star start state stay step still stone stop story street strong study such summer sun
sure surface system table take talk tell test than that the their them then there these they thing think third this
those though thought thousand through time today together told took top toward town trade train travel tree true try
turn two under unit until upon use valley value very view village visit voice wait walk wall want war warm watch water
wave way weather week well went west what wheel when where which while white whole why wide wild will wind window
winter wish with within without woman wonder wood word work world would write year yellow yes yet young
"""

WORDS = tuple(_TEXT.split())
"""Common words; with a leading space, every word is a single token of SmolLM2."""

SENTENCE = (7, 12)
"""Fewest and most words of a sentence."""


def prose(rng: random.Random, tokens: float, tokens_per_word: float = TOKENS_PER_WORD) -> str:
    """Sentences of random common words, about `tokens` tokens long and at least one word."""
    left = max(1, round(tokens / tokens_per_word))
    sentences = []
    while left:
        words = rng.choices(WORDS, k=min(left, rng.randint(*SENTENCE)))
        left -= len(words)
        sentences.append(" ".join(words).capitalize() + ".")
    return " ".join(sentences)
