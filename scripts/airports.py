"""Write the airports and routes of the tour: real places, invented routes, and the mistakes of real files.

    python scripts/airports.py DIRECTORY

Running it again writes the same bytes.
"""

import csv
import math
import random
import sys
from pathlib import Path

COLUMNS = ("iata", "name", "town", "country", "latitude", "longitude", "elevation")
AIRPORTS = """
ADB;Adnan Menderes International Airport;İzmir;Turkey;38.2924;27.1570;412
AMS;Amsterdam Airport Schiphol;Amsterdam;Netherlands;52.3086;4.7639;-11
ATH;Eleftherios Venizelos International Airport;Athens;Greece;37.9364;23.9445;308
BCN;Josep Tarradellas Airport;Barcelona;Spain;41.2971;2.0785;12
BOS;Logan International Airport;Boston;United States;42.3643;-71.0052;20
CAI;Cairo International Airport;Cairo;Egypt;30.1219;31.4056;382
CDG;Charles de Gaulle International Airport;Paris;France;49.0128;2.5500;392
DUB;Dublin Airport;Dublin;Ireland;53.4213;-6.2701;242
FRA;Frankfurt am Main Airport;Frankfurt;Germany;50.0333;8.5706;364
GRU;Guarulhos International Airport;São Paulo;Brazil;-23.4356;-46.4731;2459
HND;Tokyo Haneda International Airport;Tokyo;Japan;35.5523;139.7798;35
IST;Istanbul Airport;Istanbul;Turkey;41.2753;28.7519;325
JFK;John F Kennedy International Airport;New York;United States;40.6398;-73.7789;13
JNB;OR Tambo International Airport;Johannesburg;South Africa;-26.1392;28.2460;5558
KEF;Keflavik International Airport;Reykjavík;Iceland;63.9850;-22.6056;171
LHR;London Heathrow Airport;London;United Kingdom;51.4706;-0.4619;83
LIS;Humberto Delgado Airport;Lisbon;Portugal;38.7813;-9.1359;374
MAD;Adolfo Suárez Madrid Airport;Madrid;Spain;40.4719;-3.5626;1998
MEX;Licenciado Benito Juarez International Airport;Mexico City;Mexico;19.4363;-99.0721;7316
MUC;Munich Airport;München;Germany;48.3538;11.7861;1487
NBO;Jomo Kenyatta International Airport;Nairobi;Kenya;-1.3192;36.9278;5330
ORY;Paris Orly Airport;Paris;France;48.7233;2.3794;291
OSL;Oslo Gardermoen Airport;Oslo;Norway;60.1939;11.1004;681
SIN;Singapore Changi Airport;Singapore;Singapore;1.3502;103.9940;22
SYD;Sydney Kingsford Smith International Airport;Sydney;Australia;-33.9461;151.1770;21
ZRH;Zürich Airport;Zürich;Switzerland;47.4647;8.5492;1416
"""
MISTAKES = """
ADB;Adnan Menderes International Airport;Izmir;Turkey;38.2924;27.1570;412
VIE;Vienna International Airport;Vienna;Austria;481.103;16.5697;600
OPO;Francisco Sá Carneiro Airport;Porto;Portugal;41.2481;-8.6814;high
"""
AIRLINES = ("Northwind", "Meridian", "Blue Heron")


def rows(text: str) -> list[list[str]]:
    return [line.split(";") for line in text.strip().splitlines()]


def kilometres(one: list[str], other: list[str]) -> float:
    """The way over the surface of the Earth."""
    here, there = ([math.radians(float(text)) for text in each[4:6]] for each in (one, other))
    half = math.sin((there[0] - here[0]) / 2) ** 2
    half += math.cos(here[0]) * math.cos(there[0]) * math.sin((there[1] - here[1]) / 2) ** 2
    return 2 * 6371 * math.asin(math.sqrt(half))


def routes(airports: list[list[str]]) -> list[list[object]]:
    """Each airport's flights to a few near ones and a few anywhere, and two to places that are nowhere."""
    choose = random.Random(19)  # the same choices every time
    found: list[list[object]] = []
    for one in airports:
        others = sorted(
            (each for each in airports if each is not one), key=lambda each: kilometres(one, each)
        )
        for other in (*others[:4], *choose.sample(others[4:], 3)):
            far = round(kilometres(one, other))
            found.append([one[0], other[0], choose.choice(AIRLINES), choose.randint(1, 28), far])
    return [*found, ["LHR", "XXX", "Meridian", 7, 100], ["QQQ", "LHR", "Meridian", 7, 100]]


def write(path: Path, columns: tuple[str, ...], lines: list[list[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *lines])


def main(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    good = rows(AIRPORTS)
    write(home / "airports.csv", COLUMNS, [*good, *rows(MISTAKES)])
    write(home / "routes.csv", ("from", "to", "airline", "weekly", "distance"), routes(good))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
