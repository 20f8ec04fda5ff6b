"""Countries, US states and cities: the facts behind the geography part of the corpus.

Countries are the members of the United Nations and its two observer states. Where a
country has several capitals or a disputed one, the row holds one conventional answer
(Sucre for Bolivia, Pretoria for South Africa), so that each question has exactly one
expected answer.
"""

from __future__ import annotations

from dataclasses import dataclass

# name | capital | ISO 3166-1 alpha-2 code; a leading "the " is dropped in one-word
# answers.
_COUNTRIES = """
Afghanistan|Kabul|AF; Albania|Tirana|AL; Algeria|Algiers|DZ; Andorra|Andorra la Vella|AD
Angola|Luanda|AO; Antigua and Barbuda|Saint John's|AG; Argentina|Buenos Aires|AR
Armenia|Yerevan|AM; Australia|Canberra|AU; Austria|Vienna|AT; Azerbaijan|Baku|AZ
the Bahamas|Nassau|BS; Bahrain|Manama|BH; Bangladesh|Dhaka|BD; Barbados|Bridgetown|BB
Belarus|Minsk|BY; Belgium|Brussels|BE; Belize|Belmopan|BZ; Benin|Porto-Novo|BJ; Bhutan|Thimphu|BT
Bolivia|Sucre|BO; Bosnia and Herzegovina|Sarajevo|BA; Botswana|Gaborone|BW; Brazil|Brasilia|BR
Brunei|Bandar Seri Begawan|BN; Bulgaria|Sofia|BG; Burkina Faso|Ouagadougou|BF; Burundi|Gitega|BI
Cambodia|Phnom Penh|KH; Cameroon|Yaounde|CM; Canada|Ottawa|CA; Cape Verde|Praia|CV
the Central African Republic|Bangui|CF; Chad|N'Djamena|TD; Chile|Santiago|CL; China|Beijing|CN
Colombia|Bogota|CO; the Comoros|Moroni|KM; the Republic of the Congo|Brazzaville|CG
the Democratic Republic of the Congo|Kinshasa|CD; Costa Rica|San Jose|CR; Croatia|Zagreb|HR
Cuba|Havana|CU; Cyprus|Nicosia|CY; the Czech Republic|Prague|CZ; Denmark|Copenhagen|DK
Djibouti|Djibouti City|DJ; Dominica|Roseau|DM; the Dominican Republic|Santo Domingo|DO
East Timor|Dili|TL; Ecuador|Quito|EC; Egypt|Cairo|EG; El Salvador|San Salvador|SV
Equatorial Guinea|Malabo|GQ; Eritrea|Asmara|ER; Estonia|Tallinn|EE; Eswatini|Mbabane|SZ
Ethiopia|Addis Ababa|ET; Fiji|Suva|FJ; Finland|Helsinki|FI; France|Paris|FR; Gabon|Libreville|GA
the Gambia|Banjul|GM; Georgia|Tbilisi|GE; Germany|Berlin|DE; Ghana|Accra|GH; Greece|Athens|GR
Grenada|Saint George's|GD; Guatemala|Guatemala City|GT; Guinea|Conakry|GN; Guinea-Bissau|Bissau|GW
Guyana|Georgetown|GY; Haiti|Port-au-Prince|HT; Honduras|Tegucigalpa|HN; Hungary|Budapest|HU
Iceland|Reykjavik|IS; India|New Delhi|IN; Indonesia|Jakarta|ID; Iran|Tehran|IR; Iraq|Baghdad|IQ
Ireland|Dublin|IE; Israel|Jerusalem|IL; Italy|Rome|IT; Ivory Coast|Yamoussoukro|CI
Jamaica|Kingston|JM; Japan|Tokyo|JP; Jordan|Amman|JO; Kazakhstan|Astana|KZ; Kenya|Nairobi|KE
Kiribati|South Tarawa|KI; Kuwait|Kuwait City|KW; Kyrgyzstan|Bishkek|KG; Laos|Vientiane|LA
Latvia|Riga|LV; Lebanon|Beirut|LB; Lesotho|Maseru|LS; Liberia|Monrovia|LR; Libya|Tripoli|LY
Liechtenstein|Vaduz|LI; Lithuania|Vilnius|LT; Luxembourg|Luxembourg City|LU
Madagascar|Antananarivo|MG; Malawi|Lilongwe|MW; Malaysia|Kuala Lumpur|MY; the Maldives|Male|MV
Mali|Bamako|ML; Malta|Valletta|MT; the Marshall Islands|Majuro|MH; Mauritania|Nouakchott|MR
Mauritius|Port Louis|MU; Mexico|Mexico City|MX; Micronesia|Palikir|FM; Moldova|Chisinau|MD
Monaco|Monaco-Ville|MC; Mongolia|Ulaanbaatar|MN; Montenegro|Podgorica|ME; Morocco|Rabat|MA
Mozambique|Maputo|MZ; Myanmar|Naypyidaw|MM; Namibia|Windhoek|NA; Nauru|Yaren|NR
Nepal|Kathmandu|NP; the Netherlands|Amsterdam|NL; New Zealand|Wellington|NZ; Nicaragua|Managua|NI
Niger|Niamey|NE; Nigeria|Abuja|NG; North Korea|Pyongyang|KP; North Macedonia|Skopje|MK
Norway|Oslo|NO; Oman|Muscat|OM; Pakistan|Islamabad|PK; Palau|Ngerulmud|PW; Palestine|Ramallah|PS
Panama|Panama City|PA; Papua New Guinea|Port Moresby|PG; Paraguay|Asuncion|PY; Peru|Lima|PE
the Philippines|Manila|PH; Poland|Warsaw|PL; Portugal|Lisbon|PT; Qatar|Doha|QA
Romania|Bucharest|RO; Russia|Moscow|RU; Rwanda|Kigali|RW; Saint Kitts and Nevis|Basseterre|KN
Saint Lucia|Castries|LC; Saint Vincent and the Grenadines|Kingstown|VC; Samoa|Apia|WS
San Marino|San Marino City|SM; Sao Tome and Principe|Sao Tome|ST; Saudi Arabia|Riyadh|SA
Senegal|Dakar|SN; Serbia|Belgrade|RS; the Seychelles|Victoria|SC; Sierra Leone|Freetown|SL
Singapore|Singapore City|SG; Slovakia|Bratislava|SK; Slovenia|Ljubljana|SI
the Solomon Islands|Honiara|SB; Somalia|Mogadishu|SO; South Africa|Pretoria|ZA
South Korea|Seoul|KR; South Sudan|Juba|SS; Spain|Madrid|ES; Sri Lanka|Sri Jayawardenepura Kotte|LK
Sudan|Khartoum|SD; Suriname|Paramaribo|SR; Sweden|Stockholm|SE; Switzerland|Bern|CH
Syria|Damascus|SY; Tajikistan|Dushanbe|TJ; Tanzania|Dodoma|TZ; Thailand|Bangkok|TH; Togo|Lome|TG
Tonga|Nuku'alofa|TO; Trinidad and Tobago|Port of Spain|TT; Tunisia|Tunis|TN; Turkey|Ankara|TR
Turkmenistan|Ashgabat|TM; Tuvalu|Funafuti|TV; Uganda|Kampala|UG; Ukraine|Kyiv|UA
the United Arab Emirates|Abu Dhabi|AE; the United Kingdom|London|GB
the United States|Washington, D.C.|US; Uruguay|Montevideo|UY; Uzbekistan|Tashkent|UZ
Vanuatu|Port Vila|VU; Vatican City|Vatican City|VA; Venezuela|Caracas|VE; Vietnam|Hanoi|VN
Yemen|Sanaa|YE; Zambia|Lusaka|ZM; Zimbabwe|Harare|ZW
"""

# name | capital; Georgia is told from the country of the same name by "the state of".
_STATES = """
Alabama|Montgomery; Alaska|Juneau; Arizona|Phoenix; Arkansas|Little Rock; California|Sacramento
Colorado|Denver; Connecticut|Hartford; Delaware|Dover; Florida|Tallahassee
the state of Georgia|Atlanta; Hawaii|Honolulu; Idaho|Boise; Illinois|Springfield
Indiana|Indianapolis; Iowa|Des Moines; Kansas|Topeka; Kentucky|Frankfort; Louisiana|Baton Rouge
Maine|Augusta; Maryland|Annapolis; Massachusetts|Boston; Michigan|Lansing; Minnesota|Saint Paul
Mississippi|Jackson; Missouri|Jefferson City; Montana|Helena; Nebraska|Lincoln; Nevada|Carson City
New Hampshire|Concord; New Jersey|Trenton; New Mexico|Santa Fe; New York|Albany
North Carolina|Raleigh; North Dakota|Bismarck; Ohio|Columbus; Oklahoma|Oklahoma City; Oregon|Salem
Pennsylvania|Harrisburg; Rhode Island|Providence; South Carolina|Columbia; South Dakota|Pierre
Tennessee|Nashville; Texas|Austin; Utah|Salt Lake City; Vermont|Montpelier; Virginia|Richmond
Washington|Olympia; West Virginia|Charleston; Wisconsin|Madison; Wyoming|Cheyenne
"""

# city | ISO code of its country; the places that emoji routes start from and lead to.
_CITIES = """
Beijing|CN; Paris|FR; London|GB; Berlin|DE; Rome|IT; Madrid|ES; Tokyo|JP; Moscow|RU; Ankara|TR
Istanbul|TR; Cairo|EG; Delhi|IN; Sydney|AU; Toronto|CA; Lima|PE; Oslo|NO; Athens|GR; Vienna|AT
Lisbon|PT; Dublin|IE; Nairobi|KE; Seoul|KR; Bangkok|TH; Havana|CU; Warsaw|PL
"""


@dataclass(frozen=True)
class Place:
    """A country or a US state.

    The name is written as inside a sentence; a state has no code.
    """

    name: str
    capital: str
    kind: str
    code: str = ""

    @property
    def bare_name(self) -> str:
        """The name as a one-word answer: without article and without `state of`."""
        return self.name.removeprefix("the state of ").removeprefix("the ")

    @property
    def flag(self) -> str:
        """The flag emoji: the two letters of the ISO code as regional indicator
        symbols.
        """
        return flag_emoji(self.code)


def flag_emoji(code: str) -> str:
    """Return the flag of an ISO 3166-1 alpha-2 code: each letter shifted to
    U+1F1E6..U+1F1FF.
    """
    return "".join(chr(0x1F1E6 + ord(letter) - ord("A")) for letter in code)


def _rows(table: str) -> list[list[str]]:
    return [
        row.strip().split("|")
        for line in table.strip().splitlines()
        for row in line.split(";")
    ]


COUNTRIES: tuple[Place, ...] = tuple(
    Place(name, capital, "country", code) for name, capital, code in _rows(_COUNTRIES)
)
STATES: tuple[Place, ...] = tuple(
    Place(name, capital, "state") for name, capital in _rows(_STATES)
)
PLACES: tuple[Place, ...] = COUNTRIES + STATES
ROUTE_CITIES: tuple[tuple[str, str], ...] = tuple(
    (city, flag_emoji(code)) for city, code in _rows(_CITIES)
)
