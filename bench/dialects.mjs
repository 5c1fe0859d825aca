// What it costs to take in one turn of a harness: its request made canonical, plus the engine's text of every message.
//
//   node bench/dialects.mjs [--quick] [--json]
//
// The yardstick is one JSON.parse of the same body, which nobody can do without. Each round parses the body of the turn
// before (so that the session remembers what a session remembers), then times the next turn's. Every round has strings of
// its own, as requests from a socket do. Medians, one thread.
import { performance } from 'node:perf_hooks';
import { plainContext } from '../dist/dialects/dialect.js';
import { DIALECTS } from '../dist/dialects/registry.js';
import { RequestMemory } from '../dist/proxy/session/request-memory.js';
import { HISTORIES } from './histories.mjs';
import { median, printReport, round } from './report.mjs';

const TURNS = 60;
const ROUNDS = process.argv.includes('--quick') ? 300 : 2_000;
/** Rounds until the compiler has settled. */
const WARM_UP = 200;

const us = (ms) => round(ms * 1_000, 1);

function measure(dialect) {
  const history = HISTORIES[dialect.name];
  const [before, now] = [history(TURNS - 1), history(TURNS)].map((body) => JSON.stringify(body));
  const context = { ...plainContext(), model: 'policy', stream: true };
  const turn = (memory, body) => {
    const { thread, messages, tools } = dialect.parseRequest(body, context);
    return memory.request(thread, messages, tools);
  };
  const times = { json: [], parse: [], texts: [], first: [] };
  for (let i = 0; i < WARM_UP + ROUNDS; i++) {
    const memory = new RequestMemory();
    turn(memory, JSON.parse(before));
    const start = performance.now();
    const body = JSON.parse(now);
    const parsed = performance.now();
    const { thread, messages, tools } = dialect.parseRequest(body, context);
    const canonical = performance.now();
    const { messageTexts } = memory.request(thread, messages, tools);
    const end = performance.now();
    new RequestMemory().request(thread, messages, tools);
    const first = performance.now();
    if (messageTexts.length < 2 * TURNS) throw new Error(`${dialect.name}: only ${messageTexts.length} messages`);
    if (i < WARM_UP) continue;
    times.json.push(parsed - start);
    times.parse.push(canonical - parsed);
    times.texts.push(end - canonical);
    times.first.push(first - end);
  }
  const [json, parse, texts, first] = [times.json, times.parse, times.texts, times.first].map(median);
  return {
    body_kb: round(now.length / 1_000, 0),
    json_parse_us: us(json),
    parse_request_us: us(parse),
    turn_texts_us: us(texts),
    first_texts_us: us(first),
    ratio_to_parse: round((parse + texts) / json),
    /** Where the session remembers nothing: its first request, or one that begins with another system text. */
    ratio_of_first: round((parse + first) / json),
  };
}

const dialects = Object.fromEntries(DIALECTS.map((dialect) => [dialect.name, measure(dialect)]));
const rows = Object.entries(dialects).map(([name, row]) => [
  name,
  `${row.ratio_to_parse}x`,
  `${row.body_kb} KB: JSON.parse ${row.json_parse_us} us, request ${row.parse_request_us} us, texts ${row.turn_texts_us} us; ${row.ratio_of_first}x when nothing is remembered`,
]);
const ratios = Object.fromEntries(Object.entries(dialects).map(([name, row]) => [name, row.ratio_to_parse]));
printReport('a turn made canonical, against one JSON.parse of its body', rows, { ratio_to_parse: ratios, dialects });
