// Measures the CPU cost of accepting one request of a harness. This consists of converting the request to floe's common message format and
// of producing the JSON text of every message for the engine.
//
//   npm run bench -- dialects [--quick] [--json]
//
// The cost is compared with one JSON.parse of the same body, which every proxy needs. The proxy keeps the messages of a session's latest
// request, so that the next request reuses them. Each round therefore first processes the request of the previous turn, and then measures
// the request of the next turn. Every round parses its body from scratch, as for a request from a socket. The results are medians, measured
// in one thread.
import { systemClock } from '@floe-rl/core';
import { type Dialect, plainContext } from '#capture/dialects/dialect';
import { DIALECTS } from '#capture/dialects/registry';
import { RequestMemory, type RequestTexts } from '#capture/proxy/session/request-memory';
import { median, printReport, type ReportRow, round } from '../report.ts';
import { HISTORIES } from './histories.ts';

const TURNS = 60;
const ROUNDS = process.argv.includes('--quick') ? 300 : 2_000;
/** Number of rounds before the measured rounds, so that the JIT compiler has optimised the code. */
const WARM_UP = 200;

const us = (ms: number): number => round(ms * 1_000, 1);

type Measured = {
  readonly body_kb: number;
  readonly json_parse_us: number;
  readonly parse_request_us: number;
  readonly turn_texts_us: number;
  readonly first_texts_us: number;
  readonly ratio_to_parse: number;
  /**
   * Cost of the first request of a session, divided by the cost of JSON.parse. The proxy cannot reuse any message of an earlier request for
   * it. The same holds for the first request after a change of the system prompt.
   */
  readonly ratio_of_first: number;
};

function measure(dialect: Dialect): Measured {
  const history = HISTORIES[dialect.name];
  const before = JSON.stringify(history(TURNS - 1));
  const now = JSON.stringify(history(TURNS));
  const context = { ...plainContext(), model: 'policy', stream: true };
  const addRequest = (memory: RequestMemory, body: unknown): RequestTexts => {
    const { thread, messages, tools } = dialect.parseRequest(body, context);
    return memory.request(thread, messages, tools);
  };
  const times: Record<'json' | 'parse' | 'texts' | 'first', number[]> = { json: [], parse: [], texts: [], first: [] };
  for (let i = 0; i < WARM_UP + ROUNDS; i++) {
    const memory = new RequestMemory();
    addRequest(memory, JSON.parse(before));
    const start = systemClock.monotonicMs();
    const body = JSON.parse(now);
    const parsed = systemClock.monotonicMs();
    const { thread, messages, tools } = dialect.parseRequest(body, context);
    const canonical = systemClock.monotonicMs();
    const { messageTexts } = memory.request(thread, messages, tools);
    const end = systemClock.monotonicMs();
    new RequestMemory().request(thread, messages, tools);
    const first = systemClock.monotonicMs();
    if (messageTexts.length < 2 * TURNS) throw new Error(`${dialect.name}: only ${messageTexts.length} messages`);
    if (i < WARM_UP) continue;
    times.json.push(parsed - start);
    times.parse.push(canonical - parsed);
    times.texts.push(end - canonical);
    times.first.push(first - end);
  }
  const middle = (values: readonly number[]): number => median(values) ?? 0;
  const json = middle(times.json);
  const parse = middle(times.parse);
  const texts = middle(times.texts);
  const first = middle(times.first);
  return {
    body_kb: round(now.length / 1_000, 0),
    json_parse_us: us(json),
    parse_request_us: us(parse),
    turn_texts_us: us(texts),
    first_texts_us: us(first),
    ratio_to_parse: round((parse + texts) / json),
    ratio_of_first: round((parse + first) / json),
  };
}

const dialects = Object.fromEntries(DIALECTS.map((dialect) => [dialect.name, measure(dialect)]));
const rows = Object.entries(dialects).map(
  ([name, row]): ReportRow => [
    name,
    `${row.ratio_to_parse}x`,
    `${row.body_kb} KB: JSON.parse ${row.json_parse_us} us, request ${row.parse_request_us} us, texts ${row.turn_texts_us} us; ${row.ratio_of_first}x with an empty memory`,
  ],
);
const ratios = Object.fromEntries(Object.entries(dialects).map(([name, row]) => [name, row.ratio_to_parse]));
printReport('A request made canonical, compared with one JSON.parse of its body', rows, {
  ratio_to_parse: ratios,
  dialects,
});
