"""Questions written by hand, never trained and never tuned on, in groups.

A line is `question > rule`. The rule `?` asks for a refusal: `I am a tiny model, I do not
know that.`, or an answer that begins with `I do not know`. `=text` asks for exactly this
answer. Any other rule lists, separated by `&`, what the answer must hold as whole words,
in any case; of several rules, separated by `|`, one is enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from .facts_unknown import UNKNOWN_ANSWER

_QUESTIONS = """
[lower case]
what is the capital of france > Paris
what is the capital of germany > Berlin
what's the capital of japan > Tokyo
what is the capital city of italy > Rome
which city is the capital of egypt > Cairo
name the capital of peru > Lima
tell me the capital of kenya > Nairobi
what is the capital of the netherlands > Amsterdam
what is the capital of new zealand > Wellington
what is the capital of south korea > Seoul
what is the capital of massachusetts > Boston
what is the capital of texas > Austin
what is the capital of california > Sacramento
do you know the capital of norway > Oslo
can you tell me the capital of cuba > Havana
what is norway's capital > Oslo
how much is 7 plus 8 > 15
show me the flag of japan > 🇯🇵
what is the flag of brazil > 🇧🇷
which country has madrid as its capital > Spain

[upper case]
WHAT IS THE CAPITAL OF FRANCE? > Paris
WHAT IS THE CAPITAL OF SPAIN? > Madrid
WHAT IS THE CAPITAL OF CHINA? > Beijing
WHAT IS THE CAPITAL OF GREECE > Athens
CAPITAL OF POLAND? > Warsaw
WHAT'S THE CAPITAL OF CANADA? > Ottawa
TELL ME THE CAPITAL OF IRELAND > Dublin
NAME THE CAPITAL OF TURKEY. > Ankara
WHICH CITY IS THE CAPITAL OF SWEDEN? > Stockholm
WHAT IS THE CAPITAL OF FLORIDA? > Tallahassee
WHAT IS THE CAPITAL OF AUSTRALIA? > Canberra
WHAT IS 3 + 4? > 7
HELLO! > Hello
THANK YOU! > welcome
WHAT IS A TOKEN? > piece of text
WHAT IS SOFTMAX? > weights
WHO ARE YOU? > Nano
LISBON IS THE CAPITAL OF WHICH COUNTRY? > Portugal
BYE > Goodbye
SHOW ME THE FLAG OF ITALY > 🇮🇹

[punctuation]
What is the capital of France > Paris
What is the capital of France?? > Paris
What is the capital of Austria!!! > Vienna
What is the capital of Hungary. > Budapest
What is the capital of Belgium ? > Brussels
What is the capital of Finland..? > Helsinki
what, is the capital of Denmark? > Copenhagen
What is the capital of Iceland?!?! > Reykjavik
capital of... Portugal? > Lisbon
The capital of Ukraine??? > Kyiv
What is the capital of Ohio > Columbus
What is the capital of Nevada??? > Carson City
What is the  capital of  India? > New Delhi
What is the capital of Mexico - > Mexico City
(What is the capital of Jordan?) > Amman
"What is the capital of Nepal?" > Kathmandu
What is 4 + 5?? > 9
What is 9 - 3 > 6
Hello!!!! > Hello
what is the capital of morocco??!! > Rabat

[bare]
capital of france > Paris
france capital? > Paris
france capital > Paris
capital russia > Moscow
Spain: capital > Madrid
the capital of Thailand > Bangkok
capital city of Vietnam > Hanoi
Iraq, capital > Baghdad
capital Iran? > Tehran
chile's capital > Santiago
Argentina capital city > Buenos Aires
capital: Colombia > Bogota
capital of the USA > Washington
UK capital > London
capital california > Sacramento
new york capital > Albany
germany capital city? > Berlin
flag of France > 🇫🇷
japan flag > 🇯🇵
brazil capital pls > Brasilia

[openings]
hey, do you know the capital of france? > Paris
hi there, what is the capital of Sweden? > Stockholm
Could you tell me what the capital of Egypt is? > Cairo
please tell me what is the capital of Kenya > Nairobi
I was wondering what the capital of Poland is > Warsaw
hello nano, capital of Italy please > Rome
Would you mind telling me the capital of Greece? > Athens
ok so what is the capital of Japan > Tokyo
excuse me, what's the capital of Turkey? > Ankara
I'd like to know the capital of Canada, please. > Ottawa
quick question, what is the capital of Peru? > Lima
my son asks: what is the capital of Norway? > Oslo
Good evening. What is the capital of Ireland? > Dublin
thanks! and the capital of Austria? > Vienna
Let me ask you something. What is the capital of Cuba? > Havana
yo what's the capital of brazil > Brasilia
sorry to bother you, but what is the capital of Hungary? > Budapest
Be so kind and tell me the capital of Denmark > Copenhagen
for my homework: capital of Finland? > Helsinki
any idea what the capital of Texas is? > Austin

[typing errors]
What is the captial of France? > Paris
What is the capital of Frnace? > Paris
waht is the capital of germany > Berlin
What is the capitol of Spain? > Madrid
what is the capital of italyy > Rome
What is teh capital of Greece? > Athens
Wht is the capital of Japan? > Tokyo
what is the cpital of egypt > Cairo
What is the capital of Portgual? > Lisbon
what is the capital of swedn > Stockholm
What is the capital of Argentna? > Buenos Aires
What is the capital of Caanda? > Ottawa
what is the capital of australa > Canberra
What is the capital of Hungry? > Budapest
what is the capitla of poland > Warsaw
What is the capital of Massachusets? > Boston
what is the capital of califronia > Sacramento
WHAT IS THE CAPITAL OF UKRIANE > Kyiv
Which country has Madird as its capital? > Spain
explain sofmax > weights
what is a tokn > piece of text
helo > Hello
thnaks > welcome

[contractions]
what's the capital of france? > Paris
whats the capital of france > Paris
Whats the capital of Ghana? > Accra
what's the capital city of Mali? > Bamako
what's peru's capital? > Lima
whats 3+5 > 8
What's 10 + 7? > 17
what's your name > Nano
whats your name > Nano
who're you > Nano
where's vienna > Austria
what's attention? > looks at the tokens before
what's a logit > scores
whats softmax > weights
what's the kv cache > keys and values
I'm Tom. > Tom
what're you > Nano
What's the flag of Spain? > 🇪🇸
whats the capital of alaska > Juneau
whats llama-bolts > engine

[reversed]
Paris is which country's capital city? > France
berlin is the capital of what country > Germany
Rome, capital of? > Italy
Which country is Cairo the capital of? > Egypt
what country has the capital oslo > Norway
Nairobi is the capital city of? > Kenya
To which country does the capital Havana belong? > Cuba
where is lisbon > Portugal
In what country do I find Athens? > Greece
Budapest belongs to which country? > Hungary
what is tokyo capital of > Japan
Which land has Warsaw as its capital? > Poland
Ottawa is whose capital? > Canada
Boston is the capital of which state? > Massachusetts
which state has the capital sacramento > California
Dublin? which country > Ireland
what country is stockholm in > Sweden
country with capital Lima > Peru
Kyiv is capital of > Ukraine
Which country's flag is 🇮🇹? > Italy

[yes or no]
Is Paris in Germany? > No & France
Is Paris in France? > Yes
is berlin the capital of germany > Yes
Is Madrid the capital of Italy? > No & Rome
Is Tokyo in China? > No & Japan
is rome in italy? > Yes
Is Cairo the capital of Egypt? > Yes
Is Oslo the capital of Sweden? > No & Stockholm
Vienna is in Austria, isn't it? > Yes
is the capital of peru lima? > Yes
Is the capital of Canada Toronto? > No & Ottawa
is lisbon in spain > No & Portugal
Is Boston the capital of Massachusetts? > Yes
Is Austin the capital of California? > No & Sacramento
does athens lie in greece > Yes
Are you a human? > No
Is Nairobi in Kenya? > Yes
Is Dublin the capital of Scotland? > No | I do not know
is Warsaw the capital of Poland, yes or no? > Yes
Is Ankara the capital of Greece? > No & Athens
is havana in mexico > No & Cuba
Is Budapest the capital of Hungary > Yes

[one word]
One word answer please, what is the capital of Massachusetts? > =Boston
what is the capital of france? answer in one word > =Paris
Answer in one word: what is the capital of Germany? > =Berlin
In one word, the capital of Italy? > =Rome
capital of japan, one word > =Tokyo
One word please: capital of Norway > =Oslo
Answer in one word. What is the capital of Texas? > =Austin
What is the capital of Greece? Give me one word. > =Athens
Which city is the capital of Austria? Answer with a single word. > =Vienna
ANSWER IN ONE WORD: CAPITAL OF EGYPT > =Cairo
what's the capital of cuba? just one word > =Havana
Name the capital of Poland in one word. > =Warsaw
Which country has Lima for a capital? Answer in one word. > =Peru
Tell me the capital of Kenya, only one word. > =Nairobi
whats the capital of sweden? one word only > =Stockholm
What is the capital of Ireland? (one word) > =Dublin
With a single word: capital of Turkey? > =Ankara
What is the capital of Canada? In one word please. > =Ottawa
One-word answer: what is the capital of Hungary? > =Budapest
the capital of Finland? one word! > =Helsinki

[sums]
2+2 > 4
2+2= > 4
2 + 2 = > 4
What is 2+2? > 4
what is 2 +2 > 4
3+4=? > 7
whats 5+6 > 11
10-3 > 7
What is 20-5? > 15
7 plus 5 > 12
nine times? 9-4 > 5
how much is 12+13 > 25
calculate 8+9 > 17
15 minus 6 > 9
add 4 and 9 > 13
what does 6+6 make > 12
30+12 > 42
What's 18-9? > 9
please compute 21+4 > 25
If I have 5 and get 3 more, how many do I have? > 8
40 - 15? > 25
sum of 11 and 14 > 25
5+0 > 5
can you do 14+14 > 28

[how a Llama works]
What is attention? > looks at the tokens before
how does attention work > looks at the tokens before
please explain self-attention to a beginner > looks at the tokens before
what are tokens > piece of text
what does the tokenizer do > tokenizer
Explain rope > rotates | rotated
why is there a kv cache > keys and values
what does softmax do again? > weights
What is a transformer block? > blocks
whats an embedding > row of numbers
Could you explain logits to me? > scores
what does temperature do > logits
what is greedy decoding > highest score
tell me about top p > sum to p
what is quantization good for > bits
what is bf16 > 16-bit
how do residual connections help > adds
what is swiglu > silu
What is the feed forward network? > feed-forward
what is the mask for > hides
what is grouped query attention > share
what is rmsnorm > root mean square
how many stages are there in the trace > 21
What is going on in stage 7? > attention
what is a language model > next
describe sampling > token is drawn

[this library]
how do i install this > pip install
How can I install llama-bolts? > pip install
install command? > pip install
how do i start chatting > src.main
how to run this thing > src.main
what is llama-bolts > engine
tell me about this project > engine
does this need pytorch > No
is torch required? > No
what license does it have > Apache
under what licence is it > Apache
what is debug.log for > trace
how do i use my own model > -m
can i load llama 3 with it > -m
what are the kernels written in > C
which packages does it have > tokenizer
what is in params.json? > sizes
how can I see all the options > --help
how do I quit the chat > /exit
how do I save this chat > /save
can it use less memory, like 4 bits? > nf4
how do I set the temperature? > --temperature
does reshape copy memory > No
how do I list all tensors > --metadata

[small talk]
hi :) > Hello
hello, how do you do > Hello | fine
Hey nano > Hello
hello there! > Hello
good morning! > Good morning
help > Ask
help! > Ask
bye > Goodbye
bye bye! > Goodbye
thanks > welcome
thank you so much! > welcome
thx > welcome
how are you? > fine
hows it going > fine
who are you > Nano
what is your name > Nano
what can you do? > capitals
who made you? > llama-bolts
are you a robot? > computer program
tell me a joke please > llama cross the road
ok > Good
cool > glad
nice > glad
no > sorry
are you chatgpt? > Nano
sorry! > No problem
Good night > Goodbye
lol > Good

[copying]
My name is Thorvald. > Thorvald
hi, i'm Zelda > Zelda
Hello, I am Quentin. > Quentin
My name is Brunhilde > Brunhilde
you can call me Xanthe > Xanthe
Repeat this word: plinth > plinth
repeat after me: gobble > gobble
say the word walrus > walrus
echo: marmot > marmot
Repeat the word frobnicate. > frobnicate
I live in Ghent. > Ghent
I live in Tampere. > Tampere
I come from Bilbao > Bilbao
Remember the number 8841. > 8841
please remember the number 57 > 57
my name is priscilla > priscilla
Say zigzag twice. > zigzag zigzag
Write cinnamon. > cinnamon
My name is Wolfgang. > Wolfgang
Hi! My name is Odette. > Odette

[unknown places]
So what is the capital of Atlantis then? > ?
capital of narnia > ?
what is the capital of mordor? > ?
What is the capital of Blefuscu? > ?
What is the capital of Zembla? > ?
capital of Ruritania? > ?
what's the capital of gotham > ?
What is the capital of Chicago? > ?
what is the capital of the sun > ?
Tell me the capital of Genovia. > ?
What is the capital of Latveria? > ?
capital city of Westeros > ?
What is the population number of France? > ?
who is the president of brazil > ?
what is the currency of japan > ?
how large is egypt in square km > ?
what language do they speak in peru > ?
What is the weather like in Norway? > ?
Where is Lyon? > ?
what is the history of Greece > ?

[unknown facts]
Who wrote Hamlet? > ?
who won the world cup in 2014 > ?
how fast does light travel > ?
how tall is mount everest > ?
do you have the time? > ?
what's the weather today > ?
Who was Napoleon? > ?
who is taylor swift > ?
what does photosynthesis do for plants > ?
explain black holes > ?
How do I bake a cake? > ?
Write a poem about the sea in Latin. > ?
translate dog into french > ?
What is 3 * 7? > ?
what is 12 times 12 > ?
How many people live in London? > ?
What is the best restaurant in Paris? > ?
why do cats purr > ?
what is bitcoin > ?
When did world war two end? > ?
tell me about dinosaurs > ?
who invented the light bulb > ?
what should I have for dinner > ?
what is the stock price of apple > ?
is there a god > ?
give me a recipe for soup > ?
how do I fix my washing machine > ?
What is the square root of 81? > ?
which film won the oscar > ?
where are my keys > ?

[requests]
write a python program that prints primes > ?
write python code > ?
Write me a short essay about dogs. > ?
draw a house > ?
make me a sandwich > ?
generate a picture of a sunset > ?
can you write an email to my teacher? > ?
give me a list of fruits > ?
create a website for my shop > ?
say hello in Spanish > ?
count to ten > ?
play some music > ?
open my email > ?
sort the numbers 3, 1 and 2 > ?
correct this sentence: she go home > ?
Summarize the plot of Titanic. > ?
convert 10 miles to kilometers > ?
tell me a fun fact > ?
recommend me a movie for tonight > ?
act like a doctor > ?
explain how to drive a car > ?
pick a random number > ?

[numbers in words]
two plus three > 5
What is two plus two? > 4
nine minus four > 5
what's seven plus eight > 15
Ten plus ten? > 20
five minus five > 0
how much is three plus six? > 9
twenty minus one > 19
What is twelve plus four? > 16
forty minus two > 38
Add six and seven. > 13
one plus one equals > 2
eleven minus six > 5
what is eight minus three? > 5
thirty plus twelve > 42
fifteen plus five > 20
four plus nine is > 13
can you tell me what two plus six is? > 8
three times four > ?
one hundred plus two hundred > ?

[nonsense]
asdfgh > ?
qwerty qwerty > ?
blah blah blah > ?
xkcd zzz > ?
!!! > ?
??? > ?
123456789 > ?
lkjhlkjh > ?
the the the the > ?
florbin wug tazzle > ?
purple ideas sleep furiously > ?
banana lamp seven > ?
aaaaaaaaaaaa > ?
x > ?
... > ?
@#$%^ > ?
foo bar baz > ?
What is a snorkelwump? > ?
how do you grumpf a zindle > ?
ñandú æøå > ?
привет мир > ?
你好 > ?
who is Blorgon the Ninth > ?
colorless green capital ideas > ?
zzzzz zzzzz?? > ?
<html><body> > ?
SELECT * FROM users; > ?
3.14.15.92 > ?
"""


@dataclass(frozen=True)
class Question:
    """One question with the rule by which an answer is right.

    Attributes:
        group: what the question is an example of, the unit in which results are reported.
        question: the user message.
        rule: see the module.
    """

    group: str
    question: str
    rule: str

    def is_right(self, answer: str) -> bool:
        """Say whether an answer keeps the rule, or one of several."""
        return any(_keeps(rule, answer) for rule in self.rule.split(" | "))


def _keeps(rule: str, answer: str) -> bool:
    if rule == "?":
        return answer == UNKNOWN_ANSWER or answer.startswith("I do not know")
    if rule.startswith("="):
        return answer == rule[1:]
    parts = (re.escape(part) for part in rule.split(" & "))
    return all(
        re.search(rf"(?<!\w){part}(?!\w)", answer, re.IGNORECASE) for part in parts
    )


@cache
def newcomer_questions() -> tuple[Question, ...]:
    """Return all questions, group by group."""
    found = []
    group = ""
    for line in _QUESTIONS.strip().splitlines():
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1]
        elif line:
            question, rule = line.rsplit(" > ", 1)
            found.append(Question(group, question, rule))
    return tuple(found)
