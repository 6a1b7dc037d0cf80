#include "model/forward/key_calibration.h"

namespace larder {

// Prose, talk, a letter, lists, numbers, code, markup and other languages: what servers are sent.
// Changing it changes the bytes of keys as codes, which stores of blocks notice by themselves.
const char* const kKeyCalibrationText = R"text(The old mill stands where the road leaves the river. In
winter the wheel is still, and children walk along the frozen race to school; in spring, when the snow
on the hills melts all at once, the miller has to open both gates or the water would take the fence. He
says that a mill is nothing but a clock that eats grain. Nobody in the village has ever found out what
he means by it, though everybody repeats it.

"You are late," said Marta without looking up. "The train?"
"The train was on time. I wasn't." He put the parcel on the table. "How is she?"
"Asleep, at last. The doctor came at four, and again at six. We should know more tomorrow."

Dear Mr. Okafor,
thank you for your letter of 3 March. Your order (no. 48-1172: two shelves, 80 x 35 cm, oak) was sent on
the 9th and should arrive within five working days. If one of the shelves is damaged, please keep the
box and write to us; we will replace it free of charge. The sum of 214.50 includes 19 % tax.
Yours sincerely, the workshop

How photosynthesis works, in short: leaves take in carbon dioxide and water, and with the energy of
light they build sugar and give off oxygen. The first half needs light and happens in stacks of
membranes, where water is split and electrons are handed from protein to protein; the second half, the
Calvin cycle, fixes carbon with the help of an enzyme that is slow and therefore very common.

1. Heat the oven to 220 degrees.
2. Mix 500 g of flour, 10 g of salt, 7 g of yeast and 350 ml of warm water.
3. Let the dough rest for an hour, fold it twice, and bake it for 35 minutes.

def moving_average(values, width):
    """Yields the mean of each run of `width` neighbours."""
    total = sum(values[:width])
    yield total / width
    for left, right in zip(values, values[width:]):
        total += right - left
        yield total / width

{"id": 7, "name": "sensor-12", "tags": ["roof", "north"], "reading": {"celsius": -3.25, "valid": true}}

SELECT city, COUNT(*) AS visits FROM trips WHERE year >= 2019 GROUP BY city ORDER BY visits DESC LIMIT 10;

System: You are a helpful assistant that answers briefly.
User: Which is larger, 9.11 or 9.9? And why do so many people get it wrong?
Assistant: 9.9 is larger, since nine tenths are more than eleven hundredths. The digits after the point
look like whole numbers, and eleven is larger than nine.

The court held that a notice sent by ordinary post is deemed received on the third day after it was
posted, unless the party to whom it was addressed shows that it did not arrive or arrived later; the
burden of showing so rests on that party alone.

Der Zug nach Basel hat heute wegen einer Störung etwa zwanzig Minuten Verspätung. Nous avons cherché la
clé partout, mais elle était dans la poche de son manteau. La biblioteca abre a las nueve y cierra a las
ocho, salvo los domingos. Il mare era calmo e la barca tornava piano verso il porto.

<ul><li><a href="/news">News</a></li><li class="open">Prices from 12 to 48 per month</li></ul>

Let f be continuous on [a, b] and differentiable in between. Then there is a point c with f'(c) = (f(b) -
f(a)) / (b - a). To see it, subtract from f the straight line through both ends: what is left vanishes
at a and at b, so it has an extremum inside, where its slope is zero.

The committee met on Tuesday to discuss the budget for the coming year. Three members asked for more time;
the chair refused, as the figures had been known since August. After two hours the plan was accepted by
seven votes to two, and everyone went home in the rain.
)text";

}  // namespace larder
