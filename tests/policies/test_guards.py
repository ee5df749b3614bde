"""Guards: what each one vetoes, and what it must leave alone. All examples are invented."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headstart.decisions import Encoding
from headstart.policies.guards.table import GUARDS, parse_prompt
from headstart.policies.guards.words import MOST_VECTORS, Parse, split_words, stem

if TYPE_CHECKING:
    from headstart.settings import GuardName

ALIKE = {"automobile": "car", "purchase": "buy", "terminate": "stop"}
"""Words that the fake encoder takes for synonyms."""


def encode(text: str, *, complete: bool = True) -> Encoding:
    """Give each word a direction of its own, and synonyms the same one."""
    words = split_words(text)
    rows = []
    for word in words:
        name = stem(ALIKE.get(word.text, word.text))
        rows.append(np.random.default_rng(abs(hash_of(name))).standard_normal(384))
    tokens = np.array(rows, np.float32).reshape(len(rows), 384)
    spans = tuple((word.start, word.end) for word in words)
    return Encoding(sentence=np.ones(4, np.float32), tokens=tokens, spans=spans, complete=complete)


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode(), "big")


def parse(text: str) -> Parse:
    return parse_prompt(text, encode(text))


VETOED = [
    ("role-swap", "Copy songs from my phone", "Copy songs to my phone"),
    ("quantifier", "Pay the rent only", "Pay the rent"),
    ("antonym", "Mach im Bad die Heizung an", "Mach bitte die Heizung im Bad aus"),
    ("antonym", "Doe de kachel in de gang aan", "Doe de kachel uit in de gang"),
    ("antonym", "Ajoute du sel à ma liste", "Enlève du sel de ma liste"),
    ("antonym", "Enciende el horno de mi casa", "Desconecta el horno de mi casa"),
    ("antonym", "Pause my order", "Cancel my order"),
    ("antonym", "I want a medium tea with milk", "I want a large tea with milk"),
    ("antonym", "A cheap hotel near the park", "A moderately priced hotel near the park"),
    ("antonym", "Bake it at medium heat", "Bake it at high heat"),
    ("question", "¿Cuántos trenes salen de Lugo?", "¿Cuáles son los trenes que salen de Lugo?"),
    ("question", "Wann fährt der Bus zum See?", "Wo fährt denn bitte der Bus ab?"),
    ("question", "O que é a licença?", "Quem pode pedir a licença?"),
    ("question", "How many seats are free?", "Are all seats free?"),
    ("quantifier", "¿Están todos los trenes llenos?", "¿Está algún tren lleno?"),
    ("quantifier", "Are there any free seats upstairs?", "Are all seats upstairs free?"),
    ("scope", "Is the homeowner insurance dear?", "Is the renter insurance dear?"),
    ("number", "Dos peras en una mesa", "Peras en una mesa"),
    ("crossing", "Fahr von Bonn über Ulm mit Ann", "Fahr von Ulm über Bonn mit Ann"),
    ("name", "Does the Acme Runner 40S float?", "Does the Acme Runner 40 float?"),
    ("name", "What does the model lyra-3b cost?", "What does the model lyra-3 cost?"),
    ("name", "Is the Lumo 9 Ultra in stock?", "Is the Lumo 9 in stock?"),
    ("name", "Cases for the Lumo K12 Mini", "Cases for the Lumo K12"),
    ("date", "Who joined the club in Q1?", "Who joined the club after Q1?"),
    ("date", "Rain until H2 2021", "Rain in H2 2021"),
    ("quantifier", "Print all pages", "Print one page"),
    ("quantifier", "How do I mute a single chat?", "How do I mute every chat?"),
    ("substitution", "Do all doors lock?", "Do any doors lock?"),
    ("substitution", "Fährt der Bus nach Bonn?", "Fährt der Bus aus Bonn?"),
    ("role-swap", "Show each owner's last boat", "Show the last owner of each boat"),
    ("role-swap", "May I swim after eating fish?", "May I eat fish after swimming?"),
    ("date", "Is the pool open before 9 am?", "Is the pool open at 9 am?"),
    ("date", "Fees in my second year", "Fees after my second year"),
    ("date", "Is it loud from 9 pm?", "Is it loud until 9 pm?"),
    ("date", "Is it loud in the holidays?", "Is it loud after the holidays?"),
    ("substitution", "Do I have to wear a hat?", "Can I wear a hat?"),
    ("substitution", "Does she have to sign?", "May she sign?"),
    ("substitution", "Is it loud on concerts?", "Is it loud before the concerts?"),
    ("substitution", "Is there a desk at the gate?", "Is there a desk outside the gate?"),
    ("substitution", "Is the train rolled back?", "Is the train rolled out?"),
    ("substitution", "Can I sing together with Ann?", "Can I sing after Ann?"),
    ("substitution", "Le bus part-il vers la gare ?", "Le bus part-il depuis la gare ?"),
    ("negation", "May I use oats instead of rice?", "May I use oats after rice?"),
    ("negation", "Do you not open on Sundays in winter?", "Do you open on Sundays in summer?"),
    ("role-swap", "Show the rent per street by year", "Show the rent per year by street"),
    ("scope", "How heavy is the Lumo K12?", "How heavy is the Lumo K12 lid?"),
    ("negation", "Is tea instead of milk fine?", "Is milk instead of tea fine?"),
    ("negation", "Replace oats with rice", "Use oats instead of rice"),
    ("negation", "Can I substitute oats for rice?", "Can I replace oats by rice?"),
    ("negation", "Substitute the oats with rice", "Substitute the oats for the rice"),
    ("language", "Wer hat Ann eingeladen?", "Quem convidou a Ann para isto?"),
    ("language", "Where is the station, please?", "Wo ist der Bahnhof, bitte?"),
    ("language", "¿Quién es el jefe de la tienda?", "Chi è il capo di questo negozio?"),
    ("comparative", "Is this a good tent?", "Is this the best tent?"),
    ("comparative", "Which tent is the best?", "Which tent is the cheapest?"),
    ("comparative", "Which good tent is cheap?", "Which of the best tents is the cheapest?"),
    ("negation", "If they can't I can pay", "If they can I can pay"),
    ("negation", "Why can't I pay?", "Why can I pay?"),
    ("number", "Book a table for 4", "Book a table for 6"),
    ("number", "Is 15 km a long run?", "Is a long run healthy?"),
    ("number", "Sum of 3 and 3", "Sum of 3"),
    ("number", "Plan a trip for five days", "Plan a trip for 8 days"),
    ("number", "What is new in Python 3.12?", "What is new in Python 3.13?"),
    ("number", "What is new in Go 1.2?", "What is new in Go 1.20?"),
    ("number", "Compare GPT-4 with others", "Compare GPT-5 with others"),
    ("number", "Flats under $900k", "Flats under $90k"),
    ("number", "Causes of World War I", "Causes of World War II"),
    ("number", "Literature of the twenty-first century", "Literature of the twentieth century"),
    ("number", "The third chapter", "The second chapter"),
    ("number", "The second to last stop", "The last stop"),
    ("unit", "Run 5 miles", "Run 5 km"),
    ("unit", "What is 40% of 12?", "What is 12% of 40?"),
    ("unit", "Send $20 home", "Send €20 home"),
    ("unit", "Wait 10 minutes", "Wait 10 hours"),
    ("negation", "Delete my photos", "Don't delete my photos"),
    ("negation", "Recipes with nuts", "Recipes without nuts"),
    ("negation", "Which plants are poisonous?", "Which plants are not poisonous?"),
    ("negation", "Log in to the portal", "Cant log in to the portal"),
    ("negation", "List all files except logs", "List all files and logs"),
    ("negation", "Should I water cacti?", "Should I stop watering cacti?"),
    ("negation", "Keep the door from closing", "Keep the door closing"),
    ("negation", "Do they always ship?", "Do they never ship?"),
    ("negation", "Foods to eat on a diet", "Foods to avoid on a diet"),
    ("negation", "Why does the lamp work?", "Why doesn\u2019t the lamp work?"),
    ("negation", "WHICH APPS NEED ROOT", "WHICH APPS DON'T NEED ROOT"),
    ("negation", "which apps need root", "which apps dont need root"),
    ("negation", "Which shops accept cheques?", "Which shops don't accept cheques?"),
    ("negation", "I hardly sleep", "I sleep"),
    ("negation", "Wie storniere ich das?", "Wie storniere ich das nicht?"),
    ("negation", "Je peux payer par carte", "Je ne peux pas payer par carte"),
    ("negation", "Recetas con nueces", "Recetas sin nueces"),
    ("negation", "Przypomnij mi o tym", "Nie przypominaj mi o tym"),
    ("date", "Spotkanie w poniedziałek", "Spotkanie we wtorek"),
    ("date", "¿Qué tiempo hace el lunes?", "¿Qué tiempo hace el jueves?"),
    ("date", "Öffnungszeiten im März", "Öffnungszeiten im Dezember"),
    ("date", "Opening hours on Monday", "Opening hours on Tuesday"),
    ("date", "Trains to Oslo in May", "Trains to Oslo in June"),
    ("date", "Weather tomorrow", "Weather today"),
    ("date", "Trains to Oslo in May", "Trains to Oslo in March"),
    ("date", "Events on 3 Mar", "Events on 3 Apr"),
    ("date", "Orders before the 4th of May", "Orders on the 4th of May"),
    ("date", "Orders since 2019", "Orders in 2019"),
    ("date", "Is it ready by Friday?", "Is it ready on Friday?"),
    ("sign", "Compute 15+20", "Compute 15-20"),
    ("sign", "What is 12 - 4?", "What is 12 / 4?"),
    ("sign", "Solve x^2 - 4x + 4 = 0", "Solve x^2 + 4x - 4 = 0"),
    ("sign", "Where is x \u2265 3?", "Where is x \u2264 3?"),
    ("sign", "Is it -10 outside?", "Is it 10 outside?"),
    ("sign", "What does a == b do?", "What does a != b do?"),
    ("sign", "What does && do in bash?", "What does & do in bash?"),
    ("sign", "Run chmod +x on it", "Run chmod -x on it"),
    ("sign", "Is [()] closed?", "Is [(]) closed?"),
    ("sign", "Simplify f(x)/(x-1)", "Simplify f(x)*(x-1)"),
    ("spelling", "What does r\u00e9sum\u00e9 mean?", "What does resume mean?"),
    ("spelling", "Qu\u00e9 es un a\u00f1o", "Qu\u00e9 es un ano"),
    ("spelling", "How safe is Abc123?", "How safe is abc123?"),
    ("spelling", "Tell me about the US", "Tell me about us"),
    ("spelling", "Count the uppercase letters in HELLO", "Count the uppercase letters in hello"),
    ("spelling", "Capitalize: new York", "Capitalize: New York"),
    ("spelling", "Translate 'I love you'", "Translate 'I loved you'"),
    ("spelling", "Define \u201ccat\u201d", "Define \u201ccats\u201d"),
    ("spelling", 'Sort "where is my parcel"', 'Sort "no parcel"'),
    ("substitution", 'Sort "where is my parcel"', 'Sort "where is my parcel now"'),
    ("question", "When was the bridge built?", "Where was the bridge built?"),
    ("question", "When's the concert?", "wheres the concert"),
    ("question", "Who wrote the report?", "When was the report written?"),
    ("question", "Why did the shop close?", "When did the shop close?"),
    ("question", "Which city is it in?", "What year is it from?"),
    ("question", "How many orders were refunded?", "Which orders were refunded?"),
    ("question", "Find the number of rooms", "Find the rooms"),
    ("question", "What are the open orders?", "Give me a count of the open orders"),
    ("question", "Where did the settlers die?", "In how many places did the settlers die?"),
    ("question", "How many people work here?", "Who works here?"),
    ("question", "How many weeks of classes are held?", "When are which classes held?"),
    ("connective", "List shops with tea and coffee", "List shops with tea or coffee"),
    ("connective", "Which films ran in 2019 or in 2020?", "Which films ran in 2019 and in 2020?"),
    ("connective", "How many own both a cat and a dog?", "How many own a cat or a dog?"),
    ("connective", "Explain the causes and effects of rust", "Explain the causes of rust"),
    ("connective", "The fee of the first and the last card", "The fee of the first card"),
    ("connective", "How do I print or scan a page?", "How do I scan a page?"),
    ("connective", "Block it. Thanks, and please send a card", "Block it. Thanks"),
    ("connective", "Block it. Thanks, and pay this evening", "Block it. Thanks"),
    ("connective", "How do I cook rice, peas and meat?", "How do I cook rice and meat?"),
    ("connective", "Shops with a tap, a tub, or a sink", "Shops with a tap or a sink"),
    ("connective", "Which towns have two or more ports?", "Which towns have two ports?"),
    ("quantifier", "Is it in all shops of the town?", "Is it in some shops of the town?"),
    ("quantifier", "Is it in all of the shops?", "Is it in some of the shops?"),
    ("quantifier", "Is it used in all my rooms?", "Is it used in some of my rooms?"),
    ("quantifier", "Can I buy it at all shops?", "Can I buy it at some shops?"),
    ("negation", "The tea is not hot and the milk not fresh", "The tea is hot and the milk fresh"),
    ("antonym", "Is a lowpass filter good?", "Is a highpass filter good?"),
    ("negation", "Which filters are not lowpass?", "Which filters are highpass?"),
    ("antonym", "Is the postorder walk shorter?", "Is the preorder walk shorter?"),
    ("quantifier", "Delete all my photos", "Delete some of my photos"),
    ("quantifier", "Can I get rid of all of my mails?", "Can I get rid of some of my mails?"),
    ("quantifier", "GET RID OF ALL OF MY MAILS", "GET RID OF SOME OF MY MAILS"),
    ("quantifier", "A list of all seats", "A list of some seats"),
    ("quantifier", "Does everyone get a badge?", "Does someone get a badge?"),
    ("quantifier", "Can I use both coupons?", "Can I use either coupon?"),
    ("quantifier", "Is parking for members only?", "Is parking for members?"),
    ("quantifier", "Sync every folder", "Sync only one folder"),
    ("comparative", "Rooms for at least 4", "Rooms for at most 4"),
    ("comparative", "Rooms for more than 4", "Rooms for no more than 4"),
    ("comparative", "Toys for children over 3", "Toys for children under 3"),
    ("comparative", "Orders of 5 or more", "Orders of 5 or less"),
    ("comparative", "Groups of exactly 8", "Groups of up to 8"),
    ("comparative", "Which is cheaper than a train?", "Which train is the cheapest?"),
    ("comparative", "A cake easier than this", "The easiest cake"),
    ("comparative", "More popular than chess", "The most popular game, chess aside"),
    ("comparative", "Which bakery is the best?", "Which bakery is the most expensive?"),
    ("comparative", "Which wood is heavier, oak or ash?", "Which wood is harder, oak or ash?"),
    ("comparative", "Tables for at least four", "Tables for at most four"),
    ("comparative", "Students with at least 3 courses", "Students with 3 courses"),
    ("comparative", "Students with 3 or more courses", "Students with 3 courses"),
    ("comparative", "An a followed by zero or one b", "An a followed by zero or more b"),
    ("comparative", "Users older than 18", "Users 18 or older"),
    ("comparative", "Fewer than 10 items", "10 items"),
    ("comparative", "Phones under Rs 500", "Phones over Rs 500"),
    ("comparative", "Is oak as hard as ash?", "Is oak harder than ash?"),
    ("comparative", "Which hotel is the cheapest?", "Which hotels are cheap?"),
    ("unit", "What is 5 miles in feet?", "What is 5 miles in yards?"),
    ("name", "Sort a list in C", "Sort a list in C++"),
    ("name", "Sort a list in C++", "Sort a list in C#"),
    ("name", "Explain main.py", "Explain test_main.py"),
    ("name", "Drop the table user_events", "Drop the table"),
    ("name", "What does plan A cost?", "What does plan B cost?"),
    ("name", "Visa for Niger", "Visa for Nigeria"),
    ("name", "Taxes in the UK", "Taxes in the US"),
    ("name", "What does Ann's lawyer say?", "What does Bob's lawyer say?"),
    ("name", "Does the NHS pay for it?", "Does the BMA pay for it?"),
    ("antonym", "Włącz światło w kuchni", "Wyłącz światło w kuchni"),
    ("antonym", "Enciende la luz", "Apaga la luz"),
    ("antonym", "Write it in lowercase", "Convert it to upper case"),
    ("antonym", "Order the rows by key", "Order the rows by value, the least one first"),
    ("antonym", "Grant access to a user", "Revoke access from a user"),
    ("antonym", "Make the room brighter", "Make the room darker"),
    ("antonym", "Boost my score", "What would lower my score?"),
    ("antonym", "INCREASE MY LIMIT", "DECREASE MY LIMIT"),
    ("antonym", "Is the pool busy at noon?", "Is the pool quiet at noon?"),
    ("antonym", "Find the cheapest flight", "Find the priciest flight"),
    ("antonym", "How do I enable dark mode?", "How do I disable dark mode?"),
    ("antonym", "Increasing the font size", "Decrease the font size"),
    ("antonym", "Adding a driver", "Removing a driver"),
    ("antonym", "Stretch before a run", "Stretch after a run"),
    ("antonym", "Cheapest hotels, please: the cheap ones", "Hotels: the expensive ones"),
    ("antonym", "Follow a repository", "Unfollow a repository"),
    ("antonym", "Is the deposit refundable?", "Is the deposit nonrefundable?"),
    ("antonym", "Is this regular expression valid?", "Is this regular expression invalid?"),
    ("role-swap", "Convert euros to yen", "Convert yen to euros"),
    ("role-swap", "How do I turn miles into feet?", "Tell me how to turn feet to miles"),
    ("role-swap", "How are litres converted to pints?", "Converting pints to litres"),
    ("role-swap", "A parcel from China", "A parcel to China"),
    ("role-swap", "next train from reading", "next train to reading"),
    ("role-swap", "Fly from Oslo to Rome", "Fly to Oslo from Rome"),
    ("role-swap", "Trains from Oslo to Rome", "When can I leave Rome for Oslo?"),
    ("role-swap", "Who invited Ann?", "Which people did Ann invite?"),
    ("role-swap", "Who called me?", "Who did I call?"),
    ("role-swap", "By whom was Ann invited?", "Who was invited by Ann?"),
    ("role-swap", "Tell me by whom Ann was invited", "Tell me who was invited by Ann"),
    ("role-swap", "Is copper heavier than iron?", "Is iron heavier than copper?"),
    ("role-swap", "Subtract 5 from 12", "Subtract 12 from 5"),
    (
        "crossing",
        "Which app turns Thai into Dutch best?",
        "Hi, which app turns Dutch into Thai best?",
    ),
    ("crossing", "Must a parent pay a student?", "Hello! Must a student pay a parent?"),
    ("crossing", "Did Ann invite Bob?", "Did Bob invite Ann?"),
    ("scope", "Reset my password", "Reset my colleague's password"),
    ("scope", "Can I join?", "Can my daughter join?"),
    ("scope", "Change my bank details", "Change my company's bank details"),
    ("scope", "What is it in dollars?", "What is it in euros?"),
    ("scope", "Where is my invoice?", "Where is our invoice?"),
    ("scope", "If Al met Bea, would he call her?", "If Al met Bea, would she call him?"),
    ("scope", "Tell him where I am", "Tell her where I am"),
    ("scope", "Do I owe you money?", "Do you owe me money?"),
    ("scope", "When will I hear from you?", "When will you hear from me?"),
    ("scope", "Can we visit them?", "Can they visit us?"),
    ("scope", "Where is his new passport?", "Where is my new passport?"),
    ("scope", "Claim on my home insurance", "Claim on my car insurance"),
    ("scope", "Open a personal account", "Open a business account"),
    ("scope", "Limits of the free plan", "Limits of the premium plan"),
    ("scope", "Change the billing address", "Change the delivery address"),
    ("scope", "What is my account balance?", "What is my joint account balance?"),
    ("scope", "What does the warranty cover?", "What does the extended warranty cover?"),
    ("substitution", "What is the capital of Peru?", "What is the capital of Chile?"),
    ("substitution", "Is Ann the manager?", "Was Ann the manager?"),
    ("substitution", "Does Ann run the shop?", "Did Ann use to run the shop?"),
    ("substitution", "Is Ann a pilot", "Is Ann becoming a pilot"),
    ("substitution", "Can I eat before the race?", "Can I eat during the race?"),
    ("substitution", "How was it refused?", "Why was it refused?"),
    ("substitution", "Can I pay in cash?", "Must I pay in cash?"),
    ("substitution", "Can I eat before the race?", "Can I eat with the race?"),
    ("substitution", "Do I turn at the bank?", "Do I turn after the bank?"),
    ("substitution", "Is there a shop in the park?", "Is there a shop behind the park?"),
    ("substitution", "Does it go to Rome?", "Does it go through Rome?"),
    ("substitution", "Can cats wash themselves?", "Can cats wash us?"),
    ("substitution", "When may I leave?", "When may they leave?"),
    ("substitution", "Who can read this?", "Who else can read this?"),
    ("substitution", "Can I read this file?", "Is it possible to read another file?"),
    ("substitution", "Can I join the club?", "Can I join the club again?"),
    ("substitution", "Can I pay the bill?", "When can I pay the bill?"),
    ("substitution", "Should I call the bank?", "May I call the bank?"),
    ("substitution", "How often do I water it?", "How often should I water it?"),
    ("substitution", "Kann ich zahlen?", "Wo kann ich zahlen?"),
    ("substitution", "¿Puedo pagar ahora?", "¿Dónde puedo pagar ahora?"),
    ("substitution", "Quand puis-je payer ?", "Puis-je payer ?"),
    ("substitution", "Bạn mua sữa khi nào?", "Bạn mua sữa?"),
    ("substitution", "What is my number?", "What is your number?"),
    ("substitution", "where Ann's talk takes place", "when Ann's talk takes place"),
    ("substitution", "Turn up the radio", "Turn off the radio"),
    ("substitution", "Is it open this week?", "Is it open next week?"),
    ("substitution", "Où est l'hôpital ?", "Où est l'aéroport ?"),
    ("substitution", "Dove si trova il mio pacco?", "Dove si trova il tuo pacco?"),
    ("substitution", "Soll ich sie vor dem Essen nehmen?", "Muss ich sie nach dem Essen nehmen?"),
    ("substitution", "¿A qué hora abre la tienda?", "¿Hasta qué hora abre la tienda?"),
    ("substitution", "¿Dónde está tu paquete?", "¿Sabes dónde está mi paquete?"),
    ("substitution", "Wo hat er ihn gesehen?", "Wo hat sie ihn gesehen?"),
    ("substitution", "Vanaf wanneer is hij open?", "Tot wanneer is hij open?"),
    ("substitution", "¿Dónde hay pan fresco barato?", "¿Dónde hay bicicletas usadas rojas?"),
    ("number", "Quero dois bilhetes para o trem", "Quero três bilhetes para o trem"),
    ("number", "Zwei Karten für den Zug, bitte", "Drei Karten für den Zug, bitte"),
    ("antonym", "¿Está cerca de la playa?", "¿Está lejos de la playa?"),
    ("antonym", "Quel hôtel est le plus grand ?", "Quel hôtel est le plus petit ?"),
    ("role-swap", "Is there more fat in milk than in tea?", "Does tea have more fat than milk?"),
    (
        "comparative",
        "Is there as much fat in tea as in milk?",
        "Is there more fat in tea than milk?",
    ),
    ("comparative", "Does tea have less fat than milk?", "Does tea have as much fat as milk?"),
    ("substitution", "Is there a shop near the park?", "Is there a shop behind the park?"),
    ("role-swap", "Rebase main onto my branch", "Rebase my branch onto main"),
    ("antonym", "A dog behind a wall", "A dog in front of a wall"),
    ("negation", "I pay if it rains", "I pay unless it rains"),
    ("substitution", "Translate: the dogs bark", "Translate: the dog barks"),
    ("substitution", "Translate the question: can I pay?", "Translate the question: may I pay?"),
    (
        "substitution",
        "Label the intent of this message: pay",
        "Label the intent of this message: paid",
    ),
    ("substitution", "User: hi\nClient: I can pay", "User: hi\nClient: I could pay"),
    ("substitution", "Question: do old frogs eat bees?", "Question: do wild cats catch mice?"),
    ("substitution", "Sum up this text\nThe cat was ill.", "Sum up this text\nThe cat is ill."),
    ("substitution", "Learn C++ in a week", "Learn C# in a week"),
    ("substitution", "Open config.toml", "Open setup.py"),
]

KEPT = [
    ("language", "Alle Lampen rot", "Mach bitte die Lampen rot"),
    ("unit", "Stell die Lampe auf 5 Prozent", "Stell die Lampe auf 5 %"),
    ("scope", "I wanna sell my car", "I sell my car"),
    ("role-swap", "Copy songs from my old phone", "Copy songs to a new phone"),
    ("quantifier", "Is calling the only way to pay?", "Do I have to call to pay?"),
    ("antonym", "Stell die Farbe auf grün", "Stell die Farbe zu grün um"),
    ("antonym", "What is an arm workout?", "What is the ab workout?"),
    ("negation", "Qual o preço no talho?", "Qual é o preço das batatas no talho?"),
    ("negation", "preço no talho", "Qual é o preço no talho?"),
    ("question", "Wie viel kostet der Bus?", "Welchen Preis hat der Bus?"),
    ("question", "Out of all seats, what number is free?", "How many seats are free?"),
    ("quantifier", "Of all the seats, which are free?", "Are there any free seats?"),
    ("quantifier", "Hi! Of all seats, what are the free ones?", "What are some free seats?"),
    ("quantifier", "First of all, what are free seats?", "What are some free seats?"),
    ("quantifier", "Can I use all doors?", "Can I use any door?"),
    ("number", "Qual é o preço dos barcos?", "Qual é o preço do barco?"),
    ("crossing", "Mach im Flur die Tür zu", "Mach die Tür im Flur zu"),
    ("crossing", "Sube la radio a 3 en mi coche", "Sube en mi coche la radio a 3"),
    ("scope", "Yes, add a pear", "Add a pear"),
    ("name", "How do I turn on 2FA?", "How do I turn on two factor login?"),
    ("name", "Does it use 5GHz?", "Does it use 5 GHz?"),
    ("name", "Music of the 1980s", "Music of the 1980's"),
    ("name", "Was the Lumo 9 Ultra sold?", "was the lumo 9 ultra sold"),
    ("name", "A 2x zoom for 10k", "A 2 x zoom for 10 k"),
    ("name", "What does the Lumo 9 cost in May?", "In May, what does the Lumo 9 cost?"),
    ("date", "Who joined in Q1?", "Who joined during Q1?"),
    ("quantifier", "Which one is for all pages?", "Which is the one for all pages?"),
    ("quantifier", "Is every single page here?", "Are all pages here?"),
    ("role-swap", "Show each owner's last boat", "Show the last boat of each owner"),
    ("role-swap", "May I swim after eating?", "After eating, may I swim?"),
    ("date", "Open until 9 am?", "Is it open by 9 am?"),
    ("date", "Is it loud from 9 pm?", "Is it loud after 9 pm?"),
    ("substitution", "Do I have to wear a hat?", "Must I wear a hat?"),
    ("date", "Fees of the second year", "Fees in the second year"),
    ("negation", "Is this answer not at all right?", "Is this answer wrong?"),
    ("negation", "May I use oats rather than rice?", "May I use oats instead of rice?"),
    ("role-swap", "The first boat and the first car", "The first car and the first boat"),
    ("scope", "How heavy is the lid of the Lumo K12?", "How heavy is the Lumo K12 lid?"),
    ("negation", "Can I use oats instead of rice?", "Can I replace rice with oats?"),
    ("negation", "In soup, can oats replace rice?", "Can I use oats in soup instead of rice?"),
    ("negation", "Substitute oats for rice", "Use oats instead of rice"),
    ("language", "Where is Rio de Janeiro?", "Is Rio de Janeiro far?"),
    ("language", "¿Dónde está la tienda?", "la tienda, dónde"),
    ("language", "Hotel Roma", "Where is the Hotel Roma?"),
    ("number", "Plan seven days in Rome", "Plan 7 days in Rome"),
    ("number", "Sum 1,000 and 20.00", "Sum 1000 and 20"),
    ("number", "My 3rd attempt", "My third attempt"),
    ("number", "Which one is faster?", "Which is faster?"),
    ("number", "A budget of 5k", "A budget of five thousand"),
    ("number", "How much is 2 million?", "How much is 2000000?"),
    ("number", "What should I do first?", "What should I do?"),
    ("unit", "Send $20 home", "Send 20 dollars home"),
    ("unit", "Wait 10 min", "Wait 10 minutes"),
    ("unit", "Wait 10 minutes", "Wait 10"),
    ("unit", "How long is a mile?", "How long is a kilometer?"),
    ("unit", "A discount of 15%", "A discount of 15 percent"),
    ("role-swap", "Is more fat in milk than in tea?", "Does milk have more fat than tea?"),
    ("comparative", "Trips of more than 5 days", "Are there as many trips of more than 5 days?"),
    ("comparative", "Is it more expensive than tea?", "Is tea less expensive than it?"),
    ("comparative", "What are some good tents?", "What are the best tents?"),
    ("comparative", "Which tent is better?", "Which tent is the best?"),
    ("comparative", "When is a good time to go?", "When is the best time to go?"),
    ("substitution", "Where can I pay?", "Where should I pay?"),
    ("substitution", "Question: how can I pay?", "Question: how do I pay?"),
    ("substitution", "Classify the intent: I can pay", "Classify the intent: I could pay"),
    ("substitution", "User query\nmay I pay late?", "User query\ncan I pay late?"),
    ("substitution", "How do I pay?", "How should I pay?"),
    ("substitution", "Wie viel kostet das Ticket?", "Bitte, wie viel kostet denn das Ticket?"),
    ("substitution", "¿Cómo puedo pagar con tarjeta?", "¿Se puede pagar con tarjeta, por favor?"),
    ("substitution", "Comment puis-je payer l'hôtel ?", "Comment dois-je payer l'hôtel ?"),
    ("substitution", "Un chien qui court dans la neige", "Un chien court dans la neige"),
    ("name", "¿Puedo pagar después?", "¿Se puede pagar después?"),
    ("spelling", "¿Cómo funciona la selección?", "¿Como funciona la seleccion?"),
    ("negation", "Onde fica o meu hotel?", "Em que rua no mapa fica o meu hotel?"),
    ("crossing", "Ça coûte combien, l'entrée ?", "Combien ça coûte, l'entrée ?"),
    ("number", "Que dois-je faire avant le cours ?", "Que faut-il faire avant le cours ?"),
    ("number", "Zwei Karten für den Zug, bitte", "2 Karten für den Zug, bitte"),
    ("number", "The due date is on the card", "The date due is on the card"),
    ("substitution", "When do I pay?", "When should I pay?"),
    ("substitution", "Could I pay later?", "May I pay later?"),
    ("substitution", "Why is it late?", "It is late, why?"),
    ("substitution", "I believe the boxes were sent", "The boxes were sent"),
    ("negation", "Open on Sunday, yes or no?", "Open on Sunday?"),
    ("negation", "Is it raining?", "Isn't it raining?"),
    ("negation", "Is it raining?", "Oh, isn't it raining?"),
    ("negation", "I can't find the settings", "Where are the settings?"),
    ("negation", "Should I upgrade?", "Should I upgrade or not?"),
    ("negation", "Never say never", "Say it"),
    ("negation", "Why not use tabs?", "Why use tabs?"),
    ("negation", "See rule No. 5", "See rule 5"),
    ("negation", "The answer is not correct", "The answer is wrong"),
    ("negation", "My lamp isn't working", "My lamp fails"),
    ("negation", "I can't seem to find my key", "Where is my key?"),
    ("negation", "My parcel hasn't arrived yet", "My parcel is late"),
    ("negation", "Stop sending me letters", "Cancel the letters"),
    ("negation", "I don't want the box, cancel it", "Cancel the box"),
    ("negation", "The tap won't stop running", "The tap keeps running"),
    ("negation", "Groups of no more than 5", "Groups of at most 5"),
    ("negation", "Stop the engine", "The engine"),
    ("date", "I missed it. May I still come?", "Can I still come if I missed it?"),
    ("date", "What's today's forecast?", "What's the forecast for today?"),
    ("date", "May I bring a dog?", "Can I bring a dog?"),
    ("date", "Open on Sundays?", "Are you open on Sunday?"),
    ("date", "Is it ready before May 4?", "Will it be ready by the 4th of May?"),
    ("date", "Orders since 2019", "Orders from 2019 on"),
    ("sign", "What is 5 plus 3?", "What is 5 + 3?"),
    ("sign", "What is 5 \u00d7 3?", "What is 5 * 3?"),
    (
        "sign",
        "A full-time job (paid) in/near Oslo",
        "A full time job, paid, in or near Oslo",
    ),
    ("sign", "- eggs\n- milk\n**What** can I bake?", "* eggs\n* milk\nWhat can I bake?"),
    ("sign", "A letter to [name]", "A letter to <name>"),
    ("sign", "Solve x = 4!", "Solve x = 4 as a quick-fix"),
    ("sign", "Do I need a visa\\", "Do I need a visa>"),
    ("question", "When does it open?", "What time does it open?"),
    ("question", "Where can I park?", "How can I find a place to park?"),
    ("question", "Who do I call when it breaks?", "What if it breaks, who do I call?"),
    ("question", "How many seats are left?", "What is the number of seats?"),
    ("question", "How many days until the match?", "When is the match?"),
    ("question", "How many seats are there?", "Give me a count of the seats"),
    ("question", "How many guests came, and when?", "When did how many guests come?"),
    ("question", "How many guests came, and when did they?", "When did the guests come?"),
    ("question", "Where do I see the total of my points?", "How many points do I have?"),
    ("question", "How many days do I have?", "What is my balance of days?"),
    ("question", "Find the phone number of the hotel", "Find the hotel's phone"),
    ("question", "The runner who won", "When did the runner win?"),
    ("spelling", "What is the capital of France?", "what is the capital of france"),
    ("spelling", "How do I reset my iPhone 6S?", "how do i reset my iphone 6s"),
    ("spelling", "WHAT IS IT", "what is it"),
    ("spelling", "What does \u201chello\u201d mean?", "What does hello mean?"),
    ("spelling", "Where's Ann's book?", "where's ann's book"),
    ("spelling", "Is it open at 5 PM?", "is it open at 5 pm?"),
    ("connective", "Do you take cash or cards?", "Are cash and cards accepted?"),
    ("connective", "Is the tank full or empty?", "Is the tank full?"),
    ("connective", "Please go ahead and book it for me", "Please book it for me"),
    ("spelling", "Har jeg overset timer?", "Har jeg overset timere?"),
    ("connective", "I came home late at night and my key is gone", "My key is gone"),
    ("quantifier", "Is it good in all?", "Is it good for some?"),
    ("quantifier", "How many in all are good?", "How many are good for some?"),
    ("quantifier", "Why does it work at all with tea?", "Why does it work with some tea?"),
    ("connective", "Where is my PIN? Thanks and regards", "Where is my PIN? Thanks"),
    ("connective", "Where is my PIN? Thank you and best wishes", "Where is my PIN? Thank you"),
    ("connective", "Where is it? Thanks in advance and regards", "Where is it? Thanks in advance"),
    ("connective", "Where is my PIN? Thank you, and take care", "Where is my PIN? Thank you"),
    ("connective", "or tea or milk", "?!"),
    ("connective", "Where, please, and when is it?", "Where and when is it?"),
    ("spelling", "Who takes care of my car?", "My car: who takes care of it?"),
    ("spelling", "I do not see the note", "The note I do not see"),
    ("negation", "Can I never not pay?", "Can I pay?"),
    ("antonym", "Take the undertow", "Take it over, the tow"),
    ("antonym", "Is prenatal care free?", "Is antenatal care free?"),
    ("antonym", "Are multinuclear cells rare?", "Are polynuclear cells rare?"),
    ("spelling", "Wo ist das kleine Haus?", "Wo ist das Haus, das klein ist?"),
    ("spelling", "How is it priced?", "What is the price?"),
    ("connective", "What is better, tea or coffee?", "What is better between tea and coffee?"),
    ("connective", "Which shops have no tea or coffee?", "Which shops have no tea and coffee?"),
    ("connective", "Which shops sell tea and milk?", "Which shops sell tea or coffee?"),
    ("quantifier", "Send some money", "Send money every month"),
    ("quantifier", "Delete all photos", "Delete every photo"),
    ("quantifier", "Not only cats purr", "Cats purr"),
    ("quantifier", "Is that all right?", "Is that right?"),
    ("quantifier", "It fails for some reason every day", "It fails each day"),
    ("quantifier", "For some reason it fails", "It fails all the time"),
    ("quantifier", "Do dogs bite at all?", "Do some dogs bite?"),
    ("quantifier", "List all users", "List the users"),
    ("comparative", "The best way to clean a pan", "The easiest way to clean a pan"),
    ("comparative", "The cheapest phone", "The most affordable phone"),
    ("comparative", "Is oak as hard as ash?", "Is oak as tough as ash?"),
    ("comparative", "Which is the cheapest hotel?", "Find the most affordable of the cheap hotels"),
    ("unit", "How long is a 5 km run?", "How many minutes does a 5 km run take?"),
    ("role-swap", "Trains from Oslo to Rome", "When can I leave Oslo for Rome?"),
    ("role-swap", "Who invited Ann?", "Who was Ann invited by?"),
    ("role-swap", "Who did the programming?", "Who programmed it?"),
    ("substitution", "Why was my card declined?", "Why has my card been declined?"),
    ("substitution", "Translate: the dogs bark", "Please translate: the dogs bark"),
    ("substitution", "My order is late", "Help: my order is late"),
    ("substitution", "How can I pay?", "How should I pay?"),
    ("substitution", "Can I pay in cash?", "Could I pay in cash?"),
    ("negation", "I pay if it does not rain", "I pay unless it rains"),
    ("comparative", "More information on the plan", "More details about the plan"),
    ("comparative", "Lower my bill", "A cheaper bill"),
    ("comparative", "More than 4 rooms", "Over 4 rooms"),
    ("comparative", "5 or more rooms", "At least 5 rooms"),
    ("comparative", "Up to 5 rooms", "No more than 5 rooms"),
    ("comparative", "5 rooms at most", "5 rooms"),
    ("comparative", "No less than 5 rooms", "5 or more rooms"),
    ("comparative", "Phones under Rs 500", "Phones for less than 500"),
    ("comparative", "Will it come within 5 days?", "Will it come in 5 days?"),
    ("comparative", "A good way to learn", "The best way to learn"),
    ("comparative", "A request under test", "A test request"),
    ("name", "Is Oslo nice?", "is oslo nice"),
    ("name", "News from Italy", "Tell me Italian news"),
    ("name", "Taxes in the U.K.", "Taxes in the UK"),
    ("name", "Taxes in the United Kingdom", "Taxes in the UK"),
    ("name", "Install node.js", "Install Node"),
    ("name", "Why is that?Thanks", "Thanks. Why is that?"),
    ("name", "How To Bake Bread At Home", "how do I bake Bread at home"),
    ("name", "HOW DO I BAKE BREAD", "How do I bake Rye bread?"),
    ("name", "Meet in March", "Meet on Monday"),
    ("name", "How do I leave Facebook?", "How do I leave that site?"),
    ("antonym", "The answer is not right", "The answer is wrong"),
    ("antonym", "I lost my key", "I can't find my key"),
    ("antonym", "How many days have I left?", "How many days remain?"),
    ("antonym", "Start the engine", "How do I start the engine?"),
    ("antonym", "Turn left, then right", "Turn right, then left"),
    ("antonym", "Which port is under load?", "Which port has an import?"),
    ("role-swap", "Find a train ticket", "Hi, a ticket for the train"),
    ("role-swap", "Stop it from renewing", "I want it not to renew"),
    ("role-swap", "A room from Monday to Friday", "Book to stay from Monday to Friday"),
    ("role-swap", "Rules of the free cards", "Some of the rules that the free cards have"),
    ("role-swap", "At the library, can I print?", "Can I print at the library?"),
    ("crossing", "Tea and coffee compared", "Coffee and tea compared"),
    ("crossing", "Rust vs Go for servers", "Go vs Rust for servers"),
    ("role-swap", "A ticket for a night train", "A train ticket for the night train"),
    ("role-swap", "How to repair a bike", "Ways to have a bike repaired"),
    ("scope", "How do I change your oil?", "How do I change my oil?"),
    ("scope", "Did he bring his bag?", "Did he bring the bag?"),
    ("scope", "Did he bring his bag?", "Did they bring his bag?"),
    ("scope", "Did he call her?", "When he was here, did he call her?"),
    ("scope", "Reset my password", "Reset the password"),
    ("scope", "Can my daughter join?", "Can my kid join?"),
    ("scope", "How do I renew my pass?", "How do you renew your pass?"),
    ("scope", "Can you tell me how I pay?", "Can I pay? Can you tell me how?"),
    ("scope", "Claim on my car insurance", "Claim on my motor insurance"),
    ("scope", "Where is my parcel?", "um where is my parcel, cheers"),
    ("scope", "Delete the account", "Delete the account permanently"),
    ("scope", "When was the oil changed?", "When was the last change of oil?"),
    ("negation", "Kann ich bar zahlen oder nicht?", "Kann ich bar zahlen?"),
    ("negation", "No puedo pagar nunca", "No puedo pagar"),
    ("negation", "Gibt es nicht nur Bücher?", "Gibt es Bücher?"),
    ("date", "Was läuft am Freitag?", "Freitag: was läuft?"),
    ("name", "Does the ban of Rs 500 hurt the Indian market?", "Will a ban hurt India?"),
    ("name", "Will a ban hurt India?", "Does the ban of Rs 500 hurt the Indian market?"),
    ("spelling", "Set the variable 'HOME' to '1'", "Set the variable 'HOME' equal to 1"),
    ("spelling", 'Sort "where is my parcel now"', 'Sort "my parcel is still not here"'),
    ("crossing", "Cancel my order", "My order cancel"),
    ("crossing", "Joining the contest", "contest join"),
    ("substitution", "Sell my car", "Sell my automobile"),
    ("substitution", "How do I bake bread?", "I want to bake bread"),
    ("substitution", "Bake bread at home", "Repair shoes in Berlin quickly tonight"),
]


@pytest.mark.parametrize(("guard", "one", "other"), VETOED)
def test_guard_vetoes_in_both_directions(guard: GuardName, one: str, other: str) -> None:
    a, b = parse(one), parse(other)
    assert GUARDS[guard](a, b)
    assert GUARDS[guard](b, a)


@pytest.mark.parametrize(("guard", "one", "other"), KEPT)
def test_guard_leaves_rewordings_alone(guard: GuardName, one: str, other: str) -> None:
    a, b = parse(one), parse(other)
    assert not GUARDS[guard](a, b)
    assert not GUARDS[guard](b, a)


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize(
    "text",
    ["", "?!", "Hello", "$5", "II", "12%", "один два", "日本語で", "🙂", "my stop, our stop"],
)
def test_a_prompt_never_vetoes_itself(guard: GuardName, text: str) -> None:
    assert not GUARDS[guard](parse(text), parse(text))


def test_guards_cover_each_family() -> None:
    assert {guard for guard, *_ in VETOED} == {guard for guard, *_ in KEPT} == GUARDS.keys()


WORDS = """
    when where who how many number of which and tea coffee + - = ( [ not no never stop
    don't avoid watering from to than by my our his company's colleague's all
    some only both either at least most over under more cheaper cheapest best expensive 5 7 five %
    $ C C++ main.py Oslo Rome UK open closed correct wrong home car insurance plan A B May Monday
    . ? in out
"""
PROMPTS = st.lists(st.sampled_from(WORDS.split()), max_size=9).map(" ".join)


@given(PROMPTS, PROMPTS)
@example("", "most many")
@settings(max_examples=150, deadline=None)
def test_guards_do_not_mind_which_prompt_was_stored(one: str, other: str) -> None:
    a, b = parse(one), parse(other)
    for guard in GUARDS.values():
        assert guard(a, b) == guard(b, a)
        assert not guard(a, a)


def test_exchange_that_cannot_be_checked_is_vetoed() -> None:
    filler = " ".join(f"word{number}" for number in range(MOST_VECTORS))
    one, other = parse(f"{filler} about Peru"), parse(f"{filler} about Chile")
    assert one.vectors == b""
    assert GUARDS["substitution"](one, other)


LONG_STORY = "Ann picked apples in the old garden and packed them evenly into boxes."


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("How many boxes did she fill at noon?", "How many fruits were left unpacked there?"),
        ("Move them one level up", "Move them to the current folder quickly"),
    ],
)
def test_another_question_about_a_long_text_is_vetoed(one: str, other: str) -> None:
    a, b = parse(f"{LONG_STORY} {one}"), parse(f"{LONG_STORY} {other}")
    assert GUARDS["substitution"](a, b)
    assert GUARDS["substitution"](b, a)


def test_reworded_question_about_a_long_text_is_left_alone() -> None:
    a, b = parse(f"{LONG_STORY} Sell the car"), parse(f"{LONG_STORY} Sell the automobile")
    assert not GUARDS["substitution"](a, b)
    with_more = parse(f"{LONG_STORY} Sell the car at noon")
    assert not GUARDS["substitution"](a, with_more)


def test_any_change_of_a_long_text_without_vectors_is_vetoed() -> None:
    filler = " ".join(f"passage{'x' * number}" for number in range(MOST_VECTORS))
    one = parse(f"{filler}. They went to great lengths to have the papers signed.")
    other = parse(f"{filler}. They did all that they could to prevent it.")
    more = parse(f"{filler}. They went to great lengths to have the papers signed at night.")
    apart = parse(" ".join(f"story{'y' * number}" for number in range(MOST_VECTORS + 1)))
    assert GUARDS["substitution"](one, other)
    assert GUARDS["substitution"](one, more)
    assert not GUARDS["substitution"](one, apart)


REPORT = (
    "The harbour opened in spring. Two ferries crossed the bay each morning, and a small crew sold "
    "tickets at the pier until the storm closed the road to the lighthouse."
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(f"{REPORT} Who sold them?", f"{REPORT} Who printed them?", id="exchanged"),
        pytest.param(f"{REPORT} Who left?", f"{REPORT} Who left early?", id="added"),
        pytest.param(REPORT, REPORT.replace("small ", ""), id="removed"),
        pytest.param(REPORT, f"{REPORT} A third crew sold tickets, too.", id="a sentence added"),
        pytest.param(REPORT, REPORT.replace("the bay", "the road"), id="a word that is there"),
        pytest.param(REPORT, REPORT.replace("harbour", "pier").replace("the pier", "the harbour")),
        pytest.param(f"{REPORT} Is it safe?", f"{REPORT} Was it safe?", id="another time"),
        pytest.param(f"{REPORT} What may happen?", f"{REPORT} What will happen?", id="how sure"),
    ],
)
def test_any_change_of_a_long_text_is_vetoed(one: str, other: str) -> None:
    a, b = parse(one), parse(other)
    assert a.vectors
    assert GUARDS["substitution"](a, b)
    assert GUARDS["substitution"](b, a)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(f"Hi! {REPORT}", f"{REPORT} Thanks.", id="courtesy"),
        pytest.param(f"{REPORT} What's the reason?", f"{REPORT} What is the reason?"),
        pytest.param(REPORT, REPORT.replace("spring. Two", "spring - two"), id="punctuation"),
        pytest.param(f"{REPORT} {REPORT}", f"{REPORT} Which car is the best?", id="mostly another"),
        pytest.param("Sell the small old car at the pier", "Sell the small car at the old pier"),
    ],
)
def test_other_texts_are_not_one_long_text_with_changes(one: str, other: str) -> None:
    assert not GUARDS["substitution"](parse(one), parse(other))


FENCED = "Does this work?\n```\n{}\n```"


@pytest.mark.parametrize(
    ("guard", "one", "other"),
    [
        ("sign", "pay(a, b)", "pay(b, a)"),
        ("crossing", "def area(a, b):\n  return sub(b, a)", "def area(a, b):\n  return sub(a, b)"),
        ("sign", "yield x", "yield (x)"),
    ],
)
def test_code_is_read_as_code(guard: GuardName, one: str, other: str) -> None:
    assert GUARDS[guard](parse(FENCED.format(one)), parse(FENCED.format(other)))
    prose = "Compare {} with {}"
    assert not GUARDS["crossing"](parse(prose.format("a cat", "b")), parse("Compare cat with b"))


def test_a_name_of_one_letter_counts_in_long_code() -> None:
    lines = [f"  total{'x' * place} = start{'y' * place}" for place in range(20)]
    one, other = (
        parse(FENCED.format("\n".join([*lines, f"  return {last}"]))) for last in ("a", "it")
    )
    assert GUARDS["substitution"](one, other)


def test_a_prompt_of_one_word_has_vectors() -> None:
    assert len(parse("Refunds?").vectors) == 384


def test_incomplete_encoding_leaves_no_vectors() -> None:
    text = "What is the capital of Peru?"
    assert parse_prompt(text, encode(text, complete=False)).vectors == b""
    missing = Encoding(
        sentence=np.ones(4, np.float32),
        tokens=np.ones((1, 384), np.float32),
        spans=((0, 4),),
        complete=True,
    )
    assert parse_prompt(text, missing).vectors == b""


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("hundred " * 3000, 3000),
        ("million " * 3000, 1),
        ("9" * 9000, 1),
        ("1." * 3000 + "5 hundred", 2),
    ],
)
def test_hostile_numbers_are_read(text: str, count: int) -> None:
    assert len(parse(text).quantities) == count


def test_entry_without_the_facts_of_its_form_matches_prose_alone() -> None:
    """Entries that were stored before these fields existed have none of them."""

    def without_form(text: str) -> Parse:
        none: frozenset[Any] = frozenset()
        return msgspec.structs.replace(parse(text), asks=none, joins=none, signs="", code="")

    asked, stored = parse("When can I see red or blue?"), without_form("Where can I see red?")
    later: tuple[GuardName, ...] = ("sign", "spelling", "question", "connective")
    assert not any(GUARDS[name](asked, stored) for name in later)
    assert GUARDS["sign"](parse("Compute 15 + 20"), without_form("Compute 15 + 20"))


@pytest.mark.parametrize(
    "text", ["( " * 9000, "-" * 9000, "a - " * 5000, "[a " * 5000, "or " * 9000]
)
def test_hostile_forms_are_read(text: str) -> None:
    assert parse(text).asks == frozenset()
