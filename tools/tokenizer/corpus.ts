// Generates training text for the simulated tokenizer: sentences, code and tool calls made from fixed word lists. A linear congruential
// generator with a fixed seed selects the words.

const NOUNS =
  `account action address agent answer archive argument array article attempt author backup balance batch block board book border boundary branch bridge browser bucket buffer bug build button byte cache call camera car card case category cause cell chain change channel chapter character chart check child choice circle city class client clock cloud cluster code collection color column command comment commit company compiler component computer condition config connection console constant container content context contract control conversation copy core corner cost count country course cover crash cursor curve customer cycle data database date day debug decision default definition degree delay demand deploy depth description design desk detail device diagram dictionary difference direction directory disk display distance document domain door draft driver echo edge editor effect element email endpoint energy engine entry environment error estimate event evidence example exception exit experiment export expression extension factor failure family feature field figure file filter finding fix flag floor flow folder font force form format frame framework friend function future game garden gate graph group growth guide handler harness hash head header health heap history home hook host hour house idea image import index input install instance instruction integer interface internet interval issue item iterator job journal key keyboard kind label lambda language layer layout lease lecture length lesson letter level library license light limit line link list loader local lock log logic loop machine map mark market mask match matrix maximum meaning measure member memory menu message method metric middle migration minimum minute mirror mode model module moment money month morning motion mouse movement name network night node noise note notebook number object observation office operation option order origin outcome output owner package page pair panel paper paragraph parameter parent parser part partner patch path pattern people percent performance period permission person phase phone picture piece pipe pixel place plan plane platform player pointer policy pool population port position power prefix pressure price principle problem procedure process product profile program progress project promise prompt property protocol proxy purpose quality quantity query question queue random range rate ratio reader reason record reference region registry regression relation release remote report repository request research reserve resource response rest result return review reward risk river road role rollout room root round route row rule runner runtime sample sandbox scale scenario schedule schema school science scope score screen script search season second secret section segment selection sense sentence sequence series server service session set setting shadow shape share shell side signal size skill slice slot software solution sort sound source space span speed stage standard start state statement station status step stock storage store story strategy stream street string structure student study style subject suffix sum summary support surface switch symbol syntax system table tag target task team temperature template term terminal test text theory thing thread threshold time title token tool topic total trace track traffic train trajectory transaction transfer translation tree trigger truth turn type unit update upload user utility value variable vector vendor version video view village visit voice volume wall water wave way weather week weight width window winner word work worker world writer year zone`.split(
    /\s+/,
  );
const VERBS =
  `accept add allow answer apply approve ask assign attach avoid become begin believe belong break bring build call cancel carry catch change check choose clean clear close collect combine compare compile complete compute confirm connect consider contain continue convert copy correct count cover create decide declare define delete deliver deny depend deploy describe design detect develop disable discover divide download draw drop edit enable encode end enter estimate evaluate examine execute exist expand expect explain explore export extend extract fail fall fetch fill filter find finish fix fold follow format generate give grow guess handle happen hash help hide hold identify ignore implement improve include increase indicate insert inspect install introduce invoke join jump keep know label launch lead learn leave list listen load lock log look lose make manage mark match measure merge miss mount move need notice obtain occur open order parse pass patch pause perform pick place plan point prepare prevent print process produce protect prove provide publish pull push raise reach read receive recommend record reduce refer refuse register reject release remain remember remove rename render repeat replace reply report request require reset resolve respond restart restore resume retry return reveal reverse review rewrite round run sample save scan schedule score search seem select send serve set share show shut sign skip solve sort split spread start stay stop store submit succeed suggest supply support suppose switch take talk tell terminate test think throw touch track train translate travel treat trim trust try turn understand update upload use validate verify visit wait walk want warn watch wish work wrap write`.split(
    /\s+/,
  );
const ADJECTIVES =
  `able absolute active actual additional ancient available basic big black blue brief bright broken careful central certain cheap clean clear close cold common complete complex concrete constant correct critical current dark deep different difficult direct double dry dynamic early easy empty entire equal exact external fair false familiar fast final fine first flat foreign free fresh full general global good great green half happy hard heavy hidden high honest huge human important initial inner internal large last late least left light likely linear little local logical long loose loud lower main major manual many medium minor missing modern narrow native natural necessary new next noisy normal null obvious odd old open optional ordinary original outer parallel partial past perfect plain pleasant poor positive possible practical present previous primary private proper public pure quick quiet rare ready real recent red regular related relative relevant remote rich right robust rough safe same secondary secure separate serious several sharp short significant silent similar simple single slow small smart smooth soft solid special specific stable static steady straight strange strict strong sudden suitable sure synthetic tall temporary thick thin tight tiny top total true typical unique unknown upper useful usual valid various visible warm weak white whole wide wild wrong yellow young zero`.split(
    /\s+/,
  );
const ADVERBS =
  `again almost already always away carefully clearly completely correctly directly easily exactly finally first here however immediately instead later maybe mostly never now often once only perhaps quickly quietly rarely really slowly soon still then there therefore together twice usually well`.split(
    /\s+/,
  );
const GLUE = [
  'the',
  'a',
  'this',
  'that',
  'each',
  'every',
  'some',
  'any',
  'its',
  'their',
  'our',
  'your',
  'my',
  'no',
  'one',
];
const LINKS = [
  'and',
  'but',
  'because',
  'so',
  'when',
  'while',
  'if',
  'unless',
  'before',
  'after',
  'since',
  'until',
  'or',
];
const PREPOSITIONS = [
  'in',
  'on',
  'at',
  'from',
  'to',
  'with',
  'without',
  'for',
  'of',
  'by',
  'under',
  'over',
  'between',
  'into',
  'through',
  'about',
  'against',
  'across',
  'during',
  'near',
];
const TOOLS = [
  'bash',
  'read_file',
  'write_file',
  'edit_file',
  'search',
  'list_files',
  'run_tests',
  'submit',
  'finish',
  'fetch',
  'python',
  'execute',
  'glob',
  'grep',
  'apply_patch',
  'think',
  'todo_write',
  'str_replace_editor',
];
const KEYS = [
  'path',
  'command',
  'content',
  'query',
  'pattern',
  'file_path',
  'old_string',
  'new_string',
  'timeout',
  'url',
  'name',
  'cwd',
  'line',
  'limit',
  'offset',
  'description',
  'answer',
  'text',
  'code',
  'count',
  'recursive',
  'id',
  'message',
  'status',
  'result',
  'type',
  'value',
];
const SHELL = [
  'ls -la',
  'cat',
  'grep -rn',
  'sed -i',
  'git diff',
  'git status',
  'git log --oneline',
  'python -m pytest',
  'npm test',
  'npm install',
  'make -j',
  'cd',
  'mkdir -p',
  'rm -rf',
  'find . -name',
  'echo',
  'curl -s',
  'docker run --rm',
  'node',
  'head -n',
  'tail -f',
  'wc -l',
  'chmod +x',
  'export',
  'pip install',
  'cargo build',
  'go test ./...',
  'sort | uniq -c',
];
const EXTENSIONS = [
  'py',
  'js',
  'ts',
  'json',
  'md',
  'c',
  'h',
  'sh',
  'txt',
  'yaml',
  'toml',
  'rs',
  'go',
  'html',
  'css',
  'log',
];

/** Constants of a linear congruential random generator with the full period of 2^32. */
const MULTIPLIER = 1664525;
const INCREMENT = 1013904223;

const SEED = 20260101;

const SENTENCES = 9000;
const SNIPPETS = 900;

/** Draws random list elements and random numbers from a seeded generator, so that every machine draws the same. */
class Draws {
  private state = SEED;

  /** Returns a random whole number from 0 to `n` - 1. */
  next(n: number): number {
    this.state = (Math.imul(this.state, MULTIPLIER) + INCREMENT) >>> 0;
    return Math.floor((this.state / 2 ** 32) * n);
  }

  /**
   * Returns a random element of a list. Squaring a uniform number in [0, 1) makes elements at the start more common, so that word
   * frequencies differ as in real text.
   */
  early(list: readonly string[]): string {
    return at(list, Math.floor((this.next(1 << 16) / (1 << 16)) ** 2 * list.length));
  }

  even<T>(list: readonly T[]): T {
    return at(list, this.next(list.length));
  }
}

function at<T>(list: readonly T[], index: number): T {
  const value = list[index];
  if (value === undefined) throw new RangeError(`no element ${index} in a list of ${list.length}`);
  return value;
}

/** Returns about 1 MB of training text, which is the same on every call. */
export function generatedText(): string {
  const draws = new Draws();
  const next = (n: number): number => draws.next(n);
  const pick = (list: readonly string[]): string => draws.early(list);
  const even = <T>(list: readonly T[]): T => draws.even(list);
  const nounPhrase = () =>
    `${pick(GLUE)} ${next(3) === 0 ? `${even(ADJECTIVES)} ` : ''}${even(NOUNS)}${next(5) === 0 ? 's' : ''}`;
  const verb = () => {
    const word = even(VERBS);
    const form = next(5);
    if (form === 0) return `${word.replace(/e$/, '')}ing`;
    if (form === 1) return `${word.replace(/e$/, '')}ed`;
    return form === 2 ? `${word}s` : word;
  };
  const clause = () =>
    `${nounPhrase()} ${next(4) === 0 ? `${even(ADVERBS)} ` : ''}${verb()} ${nounPhrase()}${next(2) === 0 ? ` ${pick(PREPOSITIONS)} ${nounPhrase()}` : ''}`;
  const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);
  const sentence = () =>
    `${capital(clause())}${next(2) === 0 ? `${next(2) ? ',' : ''} ${pick(LINKS)} ${clause()}` : ''}${even(['.', '.', '.', '.', '?', '!', ';', ':'])}`;
  const name = () =>
    even([() => `${even(VERBS)}_${even(NOUNS)}`, () => even(VERBS) + capital(even(NOUNS)), () => even(NOUNS)])();
  const path = () =>
    `${even(['src', 'test', 'docs', 'lib', '/tmp', '/workspace', '.', 'app', '/usr/local'])}/${even(NOUNS)}${next(3) === 0 ? `/${even(NOUNS)}` : ''}.${even(EXTENSIONS)}`;
  const number = () => String(next(1000));
  const value = () =>
    even([
      () => JSON.stringify(path()),
      () => JSON.stringify(`${even(SHELL)} ${path()}`),
      () => number(),
      () => even(['true', 'false', 'null']),
      () => JSON.stringify(clause()),
    ])();
  const object = () => `{${Array.from({ length: 1 + next(3) }, () => `"${even(KEYS)}":${value()}`).join(',')}}`;
  const snippets = [
    () => `{"name": "${even(TOOLS)}", "arguments": ${object()}}`,
    () =>
      `def ${name()}(${even(NOUNS)}, ${even(NOUNS)}=${even(['None', number(), 'True'])}):\n    """${sentence()}"""\n    if ${even(NOUNS)} is None:\n        raise ValueError("${clause()}")\n    for ${even(NOUNS)} in ${name()}(self.${even(NOUNS)}):\n        ${even(NOUNS)}.append(${even(NOUNS)}[${number()}])\n    return ${even(NOUNS)}`,
    () =>
      `export async function ${name()}(${even(NOUNS)}: string, ${even(NOUNS)}: number): Promise<void> {\n  const ${even(NOUNS)} = await ${name()}(${even(NOUNS)});\n  if (${even(NOUNS)} === undefined) throw new Error('${clause()}');\n  return { ${even(NOUNS)}, ${even(NOUNS)}: ${number()} };\n}`,
    () => `$ ${even(SHELL)} ${path()}\n${path()}:${number()}: ${clause()}`,
    () =>
      `static int ${name()}(const char *${even(NOUNS)}, size_t len)\n{\n\tfor (int i = 0; i < ${number()}; i++) {\n\t\tif (${even(NOUNS)}[i] == '\\0')\n\t\t\treturn -1;\n\t}\n\tprintf("%s: %d\\n", ${even(NOUNS)}, ${number()});\n\treturn 0;\n}`,
    () =>
      `import ${even(NOUNS)}\nfrom ${even(NOUNS)}.${even(NOUNS)} import ${name()}\n\nassert ${name()}(${number()}) == ${number()}\nprint(f"{${even(NOUNS)}}: {${even(NOUNS)}:.2f}")`,
    () =>
      `# ${capital(clause())}\n\n- ${sentence()}\n- \`${name()}\`: ${sentence()}\n\n\`\`\`${even(EXTENSIONS)}\n${name()}()\n\`\`\``,
    () => `{"ok":${even(['true', 'false'])},"${even(KEYS)}":[${number()},${number()}],"${even(KEYS)}":${object()}}`,
  ];
  const parts: string[] = [];
  for (let i = 0; i < SENTENCES; i++) parts.push(sentence());
  const prose = parts.join(' ').replace(/((?:[^ ]+ ){90}[^ ]+) /g, '$1\n\n');
  return `${prose}\n${Array.from({ length: SNIPPETS }, () => even(snippets)()).join('\n\n')}\n`;
}
