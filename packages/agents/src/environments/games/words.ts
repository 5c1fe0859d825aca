/** Common English words of five letters. */
export const FIVE_LETTER_WORDS: readonly string[] = `
acorn actor adapt agent agree alarm album alert alike alive allow alone along alter amber ample angle ankle apple apron
arena arise armor arrow aside audio award awake bacon badge baker basic basil basin beach beard began begin berry birch
black blade blame blank blaze blend blind block bloom board boost booth brain brake brave bread brick bride brief bring
broad brook brown brush build bunch cabin cable camel candy canoe cargo carol carry carve catch cause cedar chain chair
chalk charm chart chase cheap check cheek chess chest chief child chill chord civic claim clean clear clerk cliff climb
clock cloth cloud clown coach coast cocoa coral couch count court cover craft crane crate cream creek crisp cross crowd
crown crust cubic curve cycle daily dairy daisy dance delay depth diary diner ditch dizzy dodge doubt dozen draft drain
drama dream dress drift drill drink drive eager eagle early earth easel eight elbow elder elect empty enjoy enter entry
equal equip erase event every exact extra fable faith false fancy favor feast fence ferry fever fiber field fifty final
flame flash fleet flint float flock flood floor flour fluid flute focus force forge forty forum found frame fresh frost
fruit funny giant glass gleam globe glory glove grace grade grain grand grant grape grasp grass great green greet grill
group grove guard guess guest guide habit happy harsh haste hatch heart heavy hedge hello hinge hobby honey horse hotel
house human humor hurry ideal image index inner input ivory jelly jewel joint judge juice jumbo kayak knife knock label
labor large laser later laugh layer learn lemon level lever light limit linen liver local lodge logic loyal lucky lunar
lunch magic major maple march marsh match mayor medal melon mercy merge merit metal meter midst minor mixed model month
moral motor mount mouse mouth movie music nerve never night noble noise north novel nurse ocean offer olive onion opera
orbit order other otter outer owner oxide paint panda panel paper party pasta patch pause peace peach pearl pedal phone
photo piano piece pilot pitch pixel pizza place plain plane plant plate plaza point polar porch pound power press price
pride prime print prize proof proud pulse punch pupil puppy purse quail queen quest quick quiet quilt quota radar radio
rainy raise ranch range rapid raven reach ready realm relax reply rider ridge rifle right rival river roast robin robot
rocky rough round route royal ruler rural salad salon sauce scale scarf scene scent scope score scout screw shade shake
shape share sharp sheep sheet shelf shell shift shine shirt shore short shout sight silly since skill skirt slate sleep
slice slide slope small smart smile smoke snack snake solar solid solve sound south space spare spark speak speed spell
spice spoon sport spray squad stack staff stage stair stamp stand start state steam steel steep stick still stock stone
store storm story stove straw study style sugar sunny swamp swarm sweet swift swing sword table taste teach theme thick
thing thumb tiger timer title toast today token tooth topic torch total touch tower trace track trade trail train treat
trend trial tribe trick truck trunk trust truth tulip tutor twice twist uncle under union unite upper urban usage usual
valid value vapor vault video visit vital vivid voice wagon waste watch water whale wheat wheel white whole width world
worth wrist write yacht yield young youth zebra
`
  .trim()
  .split(/\s+/);
