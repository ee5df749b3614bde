"""Guards for negations, opposites and scopes: each of these can reverse a question.

**Opposites:** the pairs come from general English, and not from a data set. Some pairs are left out
because two prompts with them may still ask the same: in/on, to/from, and given/received ("I was
given it", "I received it").

**Scopes and substitutions:** two prompts may name different owners, kinds or modifiers, or differ
in one or two words. Such an exchanged word is compared with the words of the other prompt by their
contextual vectors (late interaction: Khattab and Zaharia, ColBERT, 2020). Exchanged words of
another meaning are a veto; similar words alone never make a hit.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

from headstart.policies.guards.facts import DENIALS
from headstart.policies.guards.words import (
    NEGATED_VERBS,
    by_first_word,
    distinct,
    rows_of,
    stem,
    stem_classes,
    stem_groups,
    stems_of,
    unit_rows,
)
from headstart.types import words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headstart.policies.guards.words import Parse, Word


# --- opposites -------------------------------------------------------------------------------

_OPPOSITE_PAIRS = """
    abnormal/normal above/below above/under absent/present abstract/concrete abundant/scarce
    accelerate/decelerate accelerate/slow accidental/deliberate accidental/intentional
    acid/alkaline acquire/dispose acquire/sell active/inactive active/passive acute/chronic
    add/deduct add/subtract adult/child advance/retreat after/before agree/disagree agree/refuse
    alive/dead all/none allow/prevent ancestor/descendant ancient/modern annual/monthly
    annual/weekly anode/cathode answer/question antimatter/matter antonym/synonym apart/together
    appear/disappear appear/vanish approve/disapprove arrival/departure arrive/depart
    arrive/leave come/leave artificial/natural ascend/descend ashamed/proud ask/reply ask/respond
    asleep/awake assemble/dismantle asset/liability async/sync asynchronous/synchronous
    attack/defend attacker/victim aunt/uncle automatic/manual avoid/eat avoid/seek avoid/use
    back/front backend/frontend backup/restore backward/forward bearish/bullish beautiful/ugly
    begin/finish behind/front beneficial/harmful bind/release birth/death bitter/sweet
    black/white blame/forgive boil/freeze boom/recession boot/shutdown boredom/interest
    borrow/lend borrower/lender bottom/top boy/girl brave/cowardly break/fix break/repair
    breakfast/dinner breakfast/lunch bride/groom brief/detailed briefly/detail bright/dark
    bright/dim brighten/dim brighter/darker brighter/dimmer broad/narrow brother/sister
    bug/feature build/demolish build/destroy busy/idle buy/rent buy/sell buyer/seller
    calm/nervous cancel/confirm cancel/pause cancel/reactivate capitalize/lowercase captive/free
    careful/careless careful/reckless catch/throw ceiling/floor charge/discharge charge/refund
    checkin/checkout child/parent ciphertext/plaintext civilian/military clear/cloudy
    client/server climb/descend clockwise/counterclockwise coarse/fine colder/hotter
    colder/warmer collapse/expand column/row combine/separate combine/split comedy/tragedy
    complex/simple complicated/simple compress/decompress compress/extract concise/verbose
    condense/expand confirm/deny constant/variable construct/demolish consumer/producer
    contract/expand cooked/raw cooler/hotter cooler/warmer courage/fear credit/debit
    creditor/debtor crooked/straight cruel/kind cry/laugh customer/supplier daily/hourly
    daily/monthly daily/weekly damage/fix damage/repair danger/safety dark/light daughter/son
    dawn/dusk day/night dead/living debit/refund decode/encode decrypt/encrypt deep/shallow
    deepen/flatten deeper/shallower defeat/victory defendant/plaintiff defense/offense
    deflate/inflate delay/hasten delete/restore demand/supply denominator/numerator
    deposit/withdraw deposit/withdrawal deserialize/serialize desist/persist destination/origin
    destination/source die/live different/same diligent/lazy dinner/lunch discourage/encourage
    dispatch/receive disprove/prove distrust/trust diurnal/nocturnal dive/surface
    divide/multiply divide/unite domestic/foreign domestic/international double/single down/up
    download/upload downstairs/upstairs downstream/upstream downward/upward drain/fill drop/lift
    dry/humid dull/sharp dusk/sunrise dynamic/static earn/lose east/west eastern/western
    emigrate/immigrate employee/employer empty/fill empty/full enemy/friend enlarge/shrink
    enter/exit enter/leave entrance/exit even/odd evening/morning everybody/nobody
    everything/nothing exhale/inhale expense/income explicit/implicit export/import
    extend/shorten exterior/interior external/internal extravert/introvert fact/fiction
    failure/success fat/lean fat/slim fat/thin father/mother fattening/slimming female/male
    feminine/masculine few/many figurative/literal finish/start fire/hire first/last
    first/second flexible/rigid float/sink fluid/solid fold/unfold follow/lead follow/precede
    follow/unfollow follower/leader foolish/wise foreign/native formal/informal former/future
    former/latter forward/reverse free/paid freeze/melt friendly/hostile front/rear
    frozen/melted full/part full/partial future/past generous/stingy global/local
    grandparent/parent gross/net guest/host guilty/innocent guilty/nonguilty handsome/ugly
    happy/sad hard/soft harden/soften hardware/software heaven/hell heed/ignore help/hinder
    hero/villain hidden/visible horizontal/vertical husband/wife ignorance/knowledge
    ignore/notice ignore/respect immoral/moral immutable/mutable imperfect/perfect
    improbable/probable inbound/outbound incoming/outgoing inferior/superior inner/outer
    input/output invalid/valid invisible/visible irrational/rational join/leave junior/senior
    key/value king/queen known/unknown land/takeoff landlord/tenant last/next learn/teach
    least/most left/right lengthen/shorten lessee/lessor liquid/solid little/much login/logout
    loose/tight loser/winner loud/quiet louder/quieter louder/softer lower/upper lower/uppercase
    lowercase/upper lowercase/uppercase major/minor majority/minority man/woman maximal/minimal
    maximize/minimize merge/split minuend/subtrahend minus/plus mobile/stationary monthly/weekly
    monthly/yearly mute/unmute narrow/wide narrower/wider negative/positive nephew/niece new/old
    next/previous no/yes none/some north/south northern/southern object/subject occupied/vacant
    off/on offline/online old/young older/younger oldest/youngest opponent/proponent
    opponent/supporter optimist/pessimist oral/written ordinary/special outside/within
    over/under overestimate/underestimate overflow/underflow oversleep/wake own/rent
    oxidize/reduce pack/unpack parallel/serial part/whole pause/play peace/war peak/trough
    permanent/temporary physical/virtual plural/singular polite/rude poor/rich pop/push post/pre
    poverty/wealth precede/succeed precise/vague predator/prey prefix/suffix private/public
    progress/regress pull/push punish/reward purchase/sell rainy/sunny rapid/slow read/write
    real/virtual receive/send receive/spend receiver/sender relax/tense resist/surrender
    retail/wholesale rough/smooth rural/urban shrink/swell signin/signout signout/signup
    sit/stand sleep/wake sour/sweet student/teacher subset/superset summer/winter sunrise/sunset
    terse/verbose thick/thin thicker/thinner tomorrow/yesterday useful/useless with/without
"""
"""Pairs that no row of ``_OPPOSITE_GROUPS`` has."""
_FOREIGN_PAIRS = """
    einschalten/ausschalten anschalten/ausschalten aktivieren/deaktivieren öffnen/schließen
    activar/desactivar activa/desactiva encender/apagar enciende/apaga abrir/cerrar abre/cierra
    subir/bajar sube/baja activer/désactiver active/désactive allumer/éteindre allume/éteins
    ouvrir/fermer ouvre/ferme ativar/desativar ligar/desligar liga/desliga attivare/disattivare
    attiva/disattiva accendere/spegnere accendi/spegni aprire/chiudere apri/chiudi
    inschakelen/uitschakelen aanzetten/uitzetten openen/sluiten włącz/wyłącz włączyć/wyłączyć
    otwórz/zamknij dodaj/usuń zwiększ/zmniejsz
    nah/weit näher/weiter mehr/weniger links/rechts früh/spät früher/später groß/klein lang/kurz
    hoch/niedrig heiß/kalt warm/kalt kaufen/verkaufen besser/schlechter teuer/billig teuer/günstig
    schnell/langsam öffnet/schließt weitesten/nächsten
    près/loin proche/loin plus/moins gauche/droite tôt/tard grand/petit grande/petite long/court
    haut/bas chaud/froid acheter/vendre meilleur/pire premier/dernier première/dernière ouvre/ferme
    cerca/lejos perto/longe más/menos mais/menos izquierda/derecha esquerda/direita temprano/tarde
    cedo/tarde grande/pequeño grande/pequeno alto/bajo alto/baixo largo/corto longo/curto
    caliente/frío quente/frio comprar/vender mejor/peor melhor/pior primero/último primeiro/último
    caro/barato rápido/lento abre/fecha
    vicino/lontano più/meno sinistra/destra presto/tardi grande/piccolo alto/basso lungo/corto
    caldo/freddo comprare/vendere migliore/peggiore primo/ultimo caro/economico veloce/lento
    apre/chiude
    dichtbij/ver dichtst/verst meer/minder vroeg/laat groot/klein lang/kort hoog/laag warm/koud
    kopen/verkopen eerste/laatste duur/goedkoop snel/langzaam opent/sluit
    blisko/daleko więcej/mniej wcześnie/późno duży/mały kupić/sprzedać lepszy/gorszy tani/drogi
    nära/långt mer/mindre vänster/höger tidigt/sent
"""
"""On and off, open and closed, near and far, more and less, big and small, early and late in
German, Spanish, French, Portuguese, Italian, Dutch, Polish and Swedish."""

_OPPOSITE_GROUPS = """
    increase raise boost grow more higher bigger larger greater extend expand double
        / decrease reduce lower cut shrink less fewer smaller drop halve minimise minimize
    improve help boost benefit strengthen enhance good better best excellent outstanding
        / damage harm hurt worsen ruin weaken bad worse worst poor terrible awful inadequate
    enable activate resume join enrol enroll register subscribe start begin launch
        / disable deactivate pause withdraw unsubscribe deregister stop end quit cancel
    allow permit let grant approve authorise authorize accept welcome eligible entitled
        / ban forbid prohibit deny refuse reject revoke decline block bar restrict ineligible
    busy crowded noisy packed / quiet empty calm peaceful deserted
    safe secure harmless healthy / unsafe dangerous risky harmful toxic unhealthy hazardous
    cheap cheaper cheapest affordable budget inexpensive
        / expensive pricey pricier priciest luxury costly costliest dearest
    add install insert attach create include contain
        / remove delete uninstall detach destroy exclude lack omit erase
    open unlock unblock unfreeze / close closed shut lock block freeze
    win pass succeed / lose fail
    keep retain save preserve / lose discard delete dispose cancel bin
    always usually frequently often / never rarely seldom
    early earlier earliest oldest / late later latest newest
    short shorter shortest brief / long longer longest lengthy
    popular famous / unpopular unknown obscure
    like love enjoy prefer / dislike hate
    legal lawful / illegal unlawful
    hot warm / cold cool
    easy easier easiest simple simplest / hard harder hardest difficult tough
    upgrade promote / downgrade demote
    hire recruit employ / dismiss sack
    compulsory mandatory obligatory required / optional voluntary
    fast faster fastest quick quicker quickest / slow slower slowest
    true real genuine / false fake
    correct right accurate / wrong incorrect inaccurate
    include contain cover incorporate / exclude omit lack
    cause trigger provoke aggravate / prevent cure treat relieve ease soothe
    attract lure / repel deter discourage
    heat warm / cool chill refrigerate
    stay / leave quit depart
    renew prolong reinstate / cancel terminate lapse expire
    rise climb soar / fall drop sink plunge decline
    support endorse favour favor / oppose reject condemn
    show display reveal / hide conceal mask
    praise compliment / criticise criticize complain complaint
    profit surplus / loss deficit debt
    heavy heavier heaviest / light lighter lightest
    big bigger biggest large larger largest huge / small smaller smallest little tiny
    high higher highest / low lower lowest
    tall taller tallest / short shorter shortest
    strong stronger strongest / weak weaker weakest
    near nearer nearest closest / far farther farthest further furthest
    wet damp moist / dry
    frequent common usual / rare uncommon unusual infrequent
    necessary essential required / unnecessary optional needless
    reliable dependable trustworthy / unreliable faulty
    advantage pros benefit strength upside / disadvantage cons drawback weakness downside risk
    well healthy fit / ill sick unwell unhealthy
    employed / unemployed jobless
    married / single divorced unmarried
    expert advanced professional experienced / beginner novice amateur inexperienced
    indoors inside indoor / outdoors outside outdoor
    obey comply follow / violate breach ignore disobey break
    connect link pair / disconnect unlink unpair
    continue proceed persist / stop quit pause halt discontinue
    liable taxable / exempt
    successful accepted / unsuccessful rejected failed
    earn save / spend waste
    gain / lose shed
    maximum max / minimum min
    tighten impose / loosen relax lift ease
    calm relax soothe / excite agitate upset provoke
    clean wash / dirty stain soil
    fresh / stale expired rotten spoiled
    satisfied happy pleased / dissatisfied unhappy disappointed annoyed
"""
"""Each word of one group is an opposite of each word of the other group of its row."""

_FOREIGN_GROUPS = """
    an ein anmachen anschalten einschalten / aus ab ausmachen ausschalten abschalten
    auf rauf hoch öffne öffnen / zu runter schließe schließ schließen
    erhöhe erhöhen verlänger verlängere verlängern / verringere verringern verkürze verkürzen
        reduziere reduzieren
    höchste höchsten / niedrigste niedrigsten
    letzte letzten letztes vorige vorheriges vorherige / nächste nächsten nächstes
    aan aandoen aanzetten inschakelen / uit uitdoen uitzetten uitschakelen
    omhoog open openen / omlaag dicht sluiten
    volgende / vorige
    verleng verlengen / verkort verkorten
    vergrendel vergrendelen vergrendeld / ontgrendel ontgrendelen ontgrendeld
    allume allumer démarre démarrer active activer / éteins éteindre coupe couper désactive
        désactiver arrête arrêter
    ajoute ajouter / enlève enlever retire retirer supprime supprimer
    monte monter augmente augmenter / baisse baisser diminue diminuer réduis réduire
    suivant suivante prochain prochaine / précédent précédente dernier dernière
    verrouille verrouiller / déverrouille déverrouiller
    enciende encender encienda activa activar conecta conectar conecte / apaga apagar apague
        desconecta desconectar desconecte desactiva desactivar
    aumenta aumentar incrementa incrementar sube subir / reduce reducir disminuye disminuir baja
        bajar
    añade añadir agrega agregar / quita quitar elimina eliminar
    siguiente próximo próxima / anterior
    bloquea bloquear / desbloquea desbloquear
    accendi accendere attiva / spegni spegnere disattiva
    aumenta aumentare alza alzare / riduci ridurre abbassa abbassare
    aggiungi aggiungere / togli togliere rimuovi rimuovere
    successivo successiva prossimo prossima / precedente
    liga ligar acende acender / desliga desligar apaga apagar
    aumenta aumentar / reduz reduzir diminui diminuir
    adiciona adicionar acrescenta acrescentar / remove remover tira tirar
    próximo próxima seguinte / anterior
    otwórz odsłoń / zamknij przymknij zasłoń
    następny następną następna kolejny kolejną kolejna / poprzedni poprzednią poprzednia
        wcześniejszy wcześniejszą
    zwiększ wydłuż wydłużyć / zmniejsz skróć skrócić zredukuj
    zablokuj / odblokuj
    på tänd tænd tenn / av af släck sluk slukk
    öppna åbn åpne / stäng luk lukk
    nästa næste neste / föregående forrige
    öka höj øg øk / minska sänk sænk senk reducer
"""
"""On and off, open and closed, more and less, next and last, add and remove in the same languages:
the words of one group are opposites of those of the other group of its row. The rows of Swedish
are also those of Danish and Norwegian."""
_PARTICLES = words_of("an ein aus ab auf zu aan uit på av")
"""Words of ``_FOREIGN_GROUPS`` that are prepositions if a noun follows."""
_PREFIXES = ("un", "non", "dis", "in", "im", "ir", "il", "de", "mis", "anti")
_SHORTEST_STEM = 4
"""The fewest characters of a word after a negative prefix. Shorter words mostly have no prefix:
"under" is not un + der."""


def _rivals(rows: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return for each word the words in the other groups of its rows."""
    rivals: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        groups = stem_groups(row)
        for group in groups:
            for word in group:
                rivals[word] |= frozenset[str]().union(*groups) - group
    return {word: frozenset(others) for word, others in rivals.items()}


_OPPOSITES = _rivals(
    [
        *(_OPPOSITE_PAIRS + _FOREIGN_PAIRS).split(),
        *rows_of(_OPPOSITE_GROUPS + _FOREIGN_GROUPS),
    ]
)


def opposites_used(a: Parse, b: Parse) -> bool:
    """Veto if the prompts have opposites and no negation cancels them ("not right" is "wrong")."""
    return a.negated == b.negated and opposites_exchanged(a, b)


def opposites_exchanged(a: Parse, b: Parse) -> bool:
    """Tell whether each prompt has a word that the other lacks, and these two words are opposites.

    Negations are not opposites here: "always" and "never" are left to ``negations_differ``.
    """
    ours, theirs = frozenset(a.stems), frozenset(b.stems)
    only_a = ours - theirs - a.negators - _governing(a, b)
    only_b = theirs - ours - b.negators - _governing(b, a)
    return (
        any(
            not only_b.isdisjoint(_OPPOSITES.get(word, ())) or _prefixed(word, only_b)
            for word in only_a
        )
        or any(_prefixed(word, only_a) for word in only_b)
        or _particles_exchanged(a, b)
    )


def _governing(parse: Parse, other: Parse) -> frozenset[str]:
    """Return words of ``_PARTICLES`` that are prepositions here ("zu Hause"), or English words."""
    if not (parse.foreign or other.foreign):
        return _PARTICLES
    return _PARTICLES & {
        word
        for word, after in pairwise(parse.stems)
        if after in parse.content or not after.isalpha()
    }


def _prefixed(word: str, others: frozenset[str]) -> bool:
    return word.startswith(_PREFIXES) and any(
        word.startswith(prefix)
        and len(word) >= len(prefix) + _SHORTEST_STEM
        and word[len(prefix) :] in others
        for prefix in _PREFIXES
    )


def _particles_exchanged(a: Parse, b: Parse) -> bool:
    """Tell whether the prompts have one verb with opposite particles: "opt in", "opt out"."""
    if not {"in", "out"} <= {*a.stems, *b.stems}:
        return False
    phrases_a, phrases_b = set(pairwise(a.stems)), set(pairwise(b.stems))
    return any(
        (verb, "out" if particle == "in" else "in") in phrases_b - phrases_a
        for verb, particle in phrases_a - phrases_b
        if particle in {"in", "out"} and verb in a.content
    )


# --- negations -------------------------------------------------------------------------------

_NEGATIONS = words_of("""
    not no never without cannot except excluding none neither nobody nothing nowhere non unable
    unless hardly barely scarcely rarely seldom
""")
_FOREIGN_NEGATIONS = words_of("""
    nicht kein keine keinen keinem keiner keines nie niemals ohne weder
    pas jamais sans aucun aucune nunca jamás jamas sin ningún ningun ninguna tampoco
    não nao sem nenhum nenhuma senza nessun nessuna nessuno niet geen nooit zonder
    nigdy bez żaden żadna żadne inte aldrig utan ingen inget inga ikke aldri uden uten
    nikdy není nem soha nélkül niciodată fără değil tidak tanpa bukan không
""")
"""Negations of German, French, Spanish, Portuguese, Italian, Dutch, Polish, Swedish, Danish,
Norwegian, Czech, Hungarian, Romanian, Turkish, Indonesian and Vietnamese. "No" and "non" are in the
English list. In most of these languages two negations do not cancel each other ("no puedo nunca").
"""
_FOREIGN_STEMS = stems_of(" ".join(_FOREIGN_NEGATIONS))
_ALL_NEGATIONS = _NEGATIONS | _FOREIGN_NEGATIONS | NEGATED_VERBS
_BEFORE_FOREIGN = words_of(
    "oder ou o czy of eller vagy warum wieso weshalb pourquoi dlaczego waarom varför hvorfor"
)
_ONLY_FOREIGN = words_of("nur seulement solo sólo só tylko alleen bara kun")
"""After "or" and "why" (``_BEFORE_FOREIGN``) and before "only", a negation does not count: "oder
nicht", "nicht nur"."""
_BESIDE_NO = words_of("uma em ao aos à às é são você vocês meu minha seu sua pelo num não")
"""Words that show that a text is Portuguese, in which "no" means "in the"."""
_PORTUGUESE = frozenset({"pt"})
_CEASING = stems_of("stop quit cease prevent halt keep")
"""Verbs that negate the verb after them: "stop watering", "keep it from renewing"."""
_AVOIDING = stems_of("avoid refrain")
"""Verbs that also negate nouns: "avoid nuts"."""
_REACH = 3
"""The most words between a negation and the word that it negates: "not at all right"."""
_NEGATION_REACH = 6
"""The number of words in which the verb after a negation is searched: "prevent … from renewing"."""
_FREE_OF = words_of("""
    sugar gluten dairy lactose nut meat alcohol caffeine fat smoke interest fee tax duty rent
""")
"""After these words "free" is a negation ("sugar-free"). In "the pool is free" it is none."""
_ENDING = stems_of("""
    cancel unsubscribe deregister disable deactivate remove delete off end terminate block ban mute
    quit stop prevent halt cease avoid rid discontinue opt
""")

# "I can't remember my PIN" and "I forgot my PIN" ask the same; so do "Why not use X" and "or not".
_PRONOUNS = words_of("i you we they he she it this that there")
_UNKNOWING = words_of("""
    remember recall know find see figure understand tell locate recognise recognize sure certain
""")
_IDIOMS = {
    "not": _UNKNOWING | {"only", "just", "yet"},
    "n't": _UNKNOWING | {"mind", "hesitate"},
    "cannot": _UNKNOWING,
    "unable": _UNKNOWING,
    "no": _ONLY_FOREIGN | words_of("matter doubt problem problems idea clue worries reason luck"),
}
_PASSED_OVER = words_of("i we seem to be able even really quite")
"""Words that may come between a negation and its verb: "I can't seem to find it"."""
_BEFORE_NOT = frozenset({"or", "why", "if", "whether"})
_BEFORE_QUESTION = words_of("and but so then well oh ok okay hi hello hey please") | {""}

_WORKING = stems_of("""
    work go going come show appear arrive receive accept load open complete process respond get
    got let allow use able happy pleased
""")
"""Verbs that make a complaint when they are negated: "it isn't working", "it won't go through"."""
_WANTING = stems_of("want need")
_TROUBLE = stems_of("""
    fail failure decline reject refuse deny block break broken error issue problem wrong trouble
    missing lost stuck pending damage unusable unavailable unsuccessful delay late crash freeze
    mistake dissatisfied unhappy disappointed disallow incorrect faulty
""")
_COMPLAINS, _TROUBLED, _CEASES, _ENDS = "complains", "troubled", "ceases", "ends"
_ALIKE = (({_COMPLAINS}, {_COMPLAINS, _TROUBLED}), ({_CEASES}, {_ENDS}))
"""Pairs of tones. A prompt with a negation and the first tone may say the same as a prompt without
a negation and with the second tone."""


_IN_PLACE_OF = frozenset({("instead", "of"), ("rather", "than")})
_SUBSTITUTING = stems_of("substitute substituting")
_REPLACING = _SUBSTITUTING | stems_of("replace replacing")
_TAKING = _REPLACING | stems_of("instead rather")
_REPLACED_WITH = frozenset({"with", "by", "for"})


def negations(
    words: Sequence[Word], spoken: frozenset[str] = frozenset()
) -> tuple[frozenset[str], bool, frozenset[str]]:
    """Return the negations of a prompt, whether their number is odd, and its tone.

    A negation in an idiom does not count. ``spoken`` has the languages that the prompt may be in.
    """
    portuguese = True if spoken == _PORTUGUESE else None
    negators = []
    tone = set()
    for place, word in enumerate(words):
        stemmed = stem(word.text)
        if word.text.endswith("n't") or word.text in _ALL_NEGATIONS:
            if word.text == "no" and portuguese is None:
                portuguese = any(other.text in _BESIDE_NO for other in words)
            if word.text == "no" and portuguese:
                continue  # "no hotel": in the hotel
            if _is_negation_idiom(words, place):
                tone |= _unknowing(words, place)
            else:
                negators.append(stemmed)
                tone |= _implied(words, place)
        elif word.text == "free" and place and words[place - 1].text in _FREE_OF:
            negators.append(stemmed)
        elif stemmed in _AVOIDING or (stemmed in _CEASING and _ceases(words, place)):
            negators.append(stemmed)
            tone.add(_CEASES)
        elif stemmed in _ENDING:
            tone.add(_ENDS)
        if stemmed in _TROUBLE:
            tone.add(_TROUBLED)
    found = frozenset(negators)
    negated = len(negators) % 2 == 1 or not found.isdisjoint(_FOREIGN_STEMS)
    return found, negated, frozenset(tone)


def negations_differ(a: Parse, b: Parse) -> bool:
    """Veto if one prompt is negated and the other is not, or if they replace the other way round.

    "X instead of Y" and "Y instead of X" replace the other way round. There is no veto if both
    prompts complain ("My card isn't working", "My card fails"), if both end something ("Stop
    sending letters", "Cancel letters"), or if an opposite cancels the negation ("not correct",
    "wrong").
    """
    if a.negated == b.negated or _no_means_in(a, b):
        return _replacement_turned(a, b)
    negated, other = (a.tone, b.tone) if a.negated else (b.tone, a.tone)
    made_up = any(negated & ours and other & theirs for ours, theirs in _ALIKE)
    return not made_up and not (opposites_exchanged(a, b) and _denies_opposite(a, b))


def _no_means_in(a: Parse, b: Parse) -> bool:
    """Tell whether the only negation is a Portuguese "no", as the other prompt shows."""
    negated, other = (a, b) if a.negated else (b, a)
    return negated.negators == {"no"} and other.languages == _PORTUGUESE and "no" in other.stems


def _denies_opposite(a: Parse, b: Parse) -> bool:
    """Tell whether the negation is about a word that the other prompt does not have: "not right".

    Otherwise an opposite does not cancel it: "not open in winter" and "open in summer".
    """
    side, other = (a, b) if a.negated else (b, a)
    only = {*side.stems} - {*other.stems} - side.negators
    return any(
        word in side.negators
        and not only.isdisjoint(side.stems[max(place - _REACH, 0) : place + 1 + _REACH])
        for place, word in enumerate(side.stems)
    )


def _replacement_turned(a: Parse, b: Parse) -> bool:
    """Tell whether one prompt takes X instead of Y, and the other Y instead of X, or X and Y."""
    (new, old), (other_new, other_old) = _replacement(a), _replacement(b)
    if bool(new and old) != bool(other_new and other_old):
        return a.content - _TAKING == b.content - _TAKING
    return not (new - old).isdisjoint(other_old - other_new) and not (old - new).isdisjoint(
        other_new - other_old
    )


def _replacement(parse: Parse) -> tuple[frozenset[str], frozenset[str]]:
    """Return the content words of X and of Y, where a prompt takes X instead of Y.

    Examples: "X instead of Y", "replace Y with X", "substitute X for Y".
    """
    for place, word in enumerate(parse.stems):
        before, after = parse.stems[:place], parse.stems[place + 1 :]
        if (word, *after[:1]) in _IN_PLACE_OF:
            return parse.content.intersection(before), parse.content.intersection(after)
        if word in _REPLACING:
            named_first = tuple(takewhile(lambda each: each not in _REPLACED_WITH, after))
            named_last = after[len(named_first) :]
            takes_first = word in _SUBSTITUTING and named_last[:1] == ("for",)
            new, old = (named_first, named_last) if takes_first else (named_last, named_first)
            return parse.content.intersection(new), parse.content.intersection(old)
    return frozenset(), frozenset()


def _ceases(words: Sequence[Word], place: int) -> bool:
    """Tell whether "stop" at ``place`` negates a verb: "stop watering", "stop it from renewing"."""
    following = words[place + 1 : place + 2 + _NEGATION_REACH]
    if following and _is_gerund(following[0]) and words[place].text[:4] != "keep":
        return True
    return any(word.text == "from" and _is_gerund(verb) for word, verb in pairwise(following))


def _is_gerund(word: Word) -> bool:
    return len(word.text) > len("king") and word.text.endswith("ing")


def _implied(words: Sequence[Word], place: int) -> set[str]:
    """Return the tone of a negation: "it isn't working" complains, "I don't want it" ends."""
    following = [stem(word.text) for word in words[place + 1 : place + 1 + _NEGATION_REACH]]
    tone = set()
    if not _WORKING.isdisjoint(following[:5]) or "yet" in following:
        tone.add(_COMPLAINS)
    if not _WANTING.isdisjoint(following[:2]):
        tone.add(_CEASES)
    return tone


def _unknowing(words: Sequence[Word], place: int) -> set[str]:
    """Return the tone of phrases such as "I can't find it": the user has a problem."""
    following = [word.text for word in words[place + 1 : place + 1 + _NEGATION_REACH]]
    return set() if _UNKNOWING.isdisjoint(following) else {_TROUBLED}


def _is_negation_idiom(words: Sequence[Word], place: int) -> bool:
    text = words[place].text
    before = words[place - 1].text if place else ""
    following = (word.text for word in words[place + 1 : place + 1 + _NEGATION_REACH])
    after = next((text for text in following if text not in _PASSED_OVER), "")
    if text in _FOREIGN_NEGATIONS:
        return before in _BEFORE_FOREIGN or after in _ONLY_FOREIGN
    contracted = text.endswith("n't") or text in NEGATED_VERBS
    if contracted and before in _BEFORE_QUESTION and after in _PRONOUNS:
        return True  # "Can't I …?" asks what "Can I …?" asks
    if text == "not" and before in _BEFORE_NOT:
        return True
    if text == "no" and (before == "or" or after[:1].isdecimal()):
        return True  # "whether or no", "No. 5"
    if text in DENIALS and [word.text for word in words[place + 2 : place + 3]] == ["than"]:
        return True  # "no more than": a limit, see ``facts.limits``
    return after in _IDIOMS.get("n't" if contracted else text, ())


# --- scope and substitution -----------------------------------------------------------------------

MOST_EXCHANGED = 2
"""The most exchanged words. Two prompts with more of them are different sentences, for which the
similarity decides."""
LEAST_MAXSIM = 0.595
"""Exchanged words with a lower similarity mean different things
(``docs/how-a-hit-is-decided.md``)."""


def exchanged_maxsim(a: Parse, b: Parse) -> float | None:
    """Return the similarity of the exchanged content words to the other prompt, from -1 to 1.

    A word is exchanged if only one prompt has it. For each, take the cosine to the most similar
    word of the other prompt, by contextual vectors. The result is the mean over both prompts, or
    None without exchanged words or without vectors.
    """
    only_a, only_b = a.content - b.content, b.content - a.content
    if not (only_a or only_b) or not a.vectors or not b.vectors:
        return None
    return mean_maxsim(a, b, (frozenset(a.stems), frozenset(b.stems)))


def mean_maxsim(a: Parse, b: Parse, parts: tuple[frozenset[str], frozenset[str]]) -> float:
    """Do the same as ``exchanged_maxsim`` for a part of each prompt, given as stems."""
    part_a, part_b = parts
    words_a, words_b = distinct(a.stems), distinct(b.stems)
    vectors_a, vectors_b = unit_rows(a.vectors, len(words_a)), unit_rows(b.vectors, len(words_b))
    content_a, content_b = part_a & a.content, part_b & b.content
    only_a, only_b = content_a - content_b, content_b - content_a
    rows_a, rows_b = (
        [row for row, word in enumerate(words) if word in only]
        for words, only in ((words_a, only_a), (words_b, only_b))
    )
    in_a, in_b = (
        [row for row, word in enumerate(words) if word in part]
        for words, part in ((words_a, part_a), (words_b, part_b))
    )
    best = [
        *(vectors_a[rows_a] @ vectors_b[in_b].T).max(axis=1),
        *(vectors_b[rows_b] @ vectors_a[in_a].T).max(axis=1),
    ]
    return float(sum(best)) / len(best)


NARROWED_MAXSIM = 0.45
"""A modifier with a lower similarity has no counterpart in the other prompt, so it narrows the
question."""

# "Your" is left out: "change your oil" is how people ask for "change my oil".
_OWNERS = stem_classes({"me": "my", "us": "our", "them": "his her their"})
_GENDERS = stem_classes({"he": "he him his himself", "she": "she her hers herself"})
_PERSONS = stem_classes({"I": "i me we us", "you": "you", "they": "he him she her they them"})
_LONGEST_THING = 4
"""The most words from an owner to the owned thing: "my company's new savings account"."""

_GROUPS = stems_of("company employer firm organisation organization business team department club")
"""Owners that are not people."""
_PEOPLE = """
    child kid son daughter teenager stepchild / baby infant newborn toddler
    / wife husband spouse partner fiance fiancee girlfriend boyfriend
    / mother mum mom father dad parent / grandmother grandfather grandparent grandma grandpa
    / brother sister sibling / uncle aunt cousin nephew niece / friend mate / neighbour neighbor
    / colleague coworker teammate / boss manager supervisor employer / contractor freelancer
    / landlord tenant lodger / roommate flatmate housemate / student pupil / pensioner retiree
    / dog puppy / cat kitten
"""
"""People that a question can be about. The words of one group mean the same."""

_KINDS = """
    home house homeowner contents building / car motor auto vehicle / travel trip / pet / life
        / health medical / dental / renter
    personal private individual / business corporate company commercial / joint shared
    free basic standard / premium pro enterprise plus / student
    economy / business / first
    domestic / international overseas abroad
    hand cabin carry / checked hold
    delivery shipping / billing
    employee staff salaried / contractor freelance freelancer self agency / volunteer / intern
    permanent / temporary casual zero
    adult / child kid infant / senior pensioner / student
    undergraduate bachelor / postgraduate graduate master phd doctorate
    home / abroad overseas / office
    flat apartment house home / office shop
    savings saver / current checking / credit
    instant / fixed / notice
    debit / credit / prepaid
    desktop laptop computer / mobile phone tablet
    ios iphone ipad / android
    windows / mac macos / linux
    man / woman
    indoor / outdoor
    primary / secondary
    local / remote
    employer / employee
    physical / virtual
    dollar usd / euro eur / pound gbp sterling / yen jpy / rupee inr / franc chf / yuan cny / peso
"""
"""Kinds of a thing: the groups of one row exclude each other."""

_PERSON = stem_classes(by_first_word(_PEOPLE))
_RIVAL_KINDS = _rivals(rows_of(_KINDS))


def scopes_differ(a: Parse, b: Parse) -> bool:
    """Veto if the prompts are about different owners, persons or kinds of things."""
    only_a, only_b = a.content - b.content, b.content - a.content
    if any(not only_b.isdisjoint(_RIVAL_KINDS.get(word, ())) for word in only_a):
        return True
    people, others = ({_PERSON[word] for word in side.content & _PERSON.keys()} for side in (a, b))
    if people != others or _owners_differ(a, b) or _genders_differ(a, b):
        return True
    return (a.content == b.content and _persons_exchanged(a, b)) or _narrowed(a, b)


def _persons_exchanged(a: Parse, b: Parse) -> bool:
    """Tell whether two persons changed places: "Do I owe you money?", "Do you owe me money?".

    All other words must be equal. "How do I …?" and "How do you …?" have only one person each, and
    mostly ask the same.
    """
    ours, theirs = _persons(a), _persons(b)
    changed = {(ours[word], theirs[word]) for word in ours.keys() & theirs.keys()}
    return any(one != other and (other, one) in changed for one, other in changed if one and other)


def _persons(parse: Parse) -> dict[str, str]:
    """Return for each word, and for the end (""), the last person that was named before it."""
    found: dict[str, str] = {}
    person = ""
    for word in parse.stems:
        if word in _PERSONS:
            person = _PERSONS[word]
        else:
            found.setdefault(word, person)
    found[""] = person
    return found


def _genders_differ(a: Parse, b: Parse) -> bool:
    """Tell whether one prompt has "he" where the other has "she"."""
    ours, theirs = ([_GENDERS[word] for word in side.stems if word in _GENDERS] for side in (a, b))
    alike = not {*ours}.isdisjoint(theirs)
    exchanged = {*ours} == {*theirs} and ours[:1] != theirs[:1]
    return bool(ours and theirs) and (exchanged or not alike)


def _owners_differ(a: Parse, b: Parse) -> bool:
    """Tell whether the prompts name different owners of one thing."""
    ours, theirs = _owners(a), _owners(b)
    return any(ours[thing] != theirs[thing] for thing in ours.keys() & theirs.keys())


def _owners(parse: Parse) -> dict[str, set[str]]:
    owners: dict[str, set[str]] = {}
    for thing, owner in _owned(parse):
        owners.setdefault(thing, set()).add(owner)
    return owners


def _owned(parse: Parse) -> Iterator[tuple[str, str]]:
    """Yield the things that a prompt says are someone's, with their owners."""
    for place, word in enumerate(parse.stems):
        owner = _OWNERS.get(word)
        if owner is None:
            continue
        thing = None
        for candidate in parse.stems[place + 1 : place + 1 + _LONGEST_THING]:
            if candidate not in parse.content:
                break
            if thing in _GROUPS:
                owner = thing
            thing = candidate
        if thing is not None:
            yield thing, owner


def _narrowed(a: Parse, b: Parse) -> bool:
    """Tell whether one prompt adds a single content word that narrows the question.

    The word is before a common word ("a joint account"), or after the name of a model ("the V11
    battery").
    """
    added = a.content ^ b.content
    if len(added) != 1:
        return False
    (word,) = added
    longer, shorter = (a, b) if word in a.content else (b, a)
    neighbors = set(pairwise(("", *shorter.stems)))
    inserted = any(
        middle == word
        and ((after in longer.content and (before, after) in neighbors) or _is_model(before))
        for before, middle, after in zip(
            ("", *longer.stems[:-1]), longer.stems, (*longer.stems[1:], ""), strict=True
        )
    )
    if not inserted:
        return False
    maxsim = exchanged_maxsim(a, b)
    return maxsim is None or maxsim < NARROWED_MAXSIM


def _is_model(word: str) -> bool:
    """Tell whether a word has letters and digits."""
    return word.isalnum() and not word.isalpha() and not word.isdecimal()
