const NUMBER = String.raw`(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)`;
const ID = String.raw`(0|[1-9]\d{0,9})`;

/** As vLLM's chat writes an entry: the id in the place of the token's text. */
const NAMED = new RegExp(
  String.raw`\{"token":"token_id:${ID}","logprob":${NUMBER},"bytes":(?:null|\[[\d,]*\]),"top_logprobs":\[\]\}`,
  'y',
);

/** As its token calls write one. */
const NUMBERED = new RegExp(
  String.raw`\{"token_id":${ID},"logprob":${NUMBER}(?:,"rank":(?:null|\d+))?,"top_logprobs":\[\]\}`,
  'y',
);

const FIELD = Buffer.from('"logprobs":{"content":[');
/** Behind the last entry: nothing else in such a list ends so. */
const END = Buffer.from('[]}]');
const COMMA = 0x2c;
const CLOSE = 0x5d;

/** The entries of a reply in columns. `[start, end)` is their array in its bytes, with the brackets. */
export type ScannedLogprobs = {
  readonly ids: readonly number[];
  readonly values: readonly number[];
  readonly start: number;
  readonly end: number;
};

/**
 * Reads the first list of log-probabilities straight from the bytes: beside the prompt's ids it is most of a reply, and an object for
 * each token costs several times as much. Null for a list that is written in any other way than the usual; the caller then
 * parses it. The field's name, with plain quotes, cannot occur inside a JSON string.
 */
export function scanLogprobs(bytes: Buffer): ScannedLogprobs | null {
  const found = bytes.indexOf(FIELD);
  const last = found < 0 ? -1 : bytes.indexOf(END, found);
  if (last < 0) return null;
  const start = found + FIELD.length - 1;
  const end = last + END.length;
  const ids: number[] = [];
  const values: number[] = [];
  const text = bytes.toString('latin1', start, end);
  const entry = text.startsWith('{"token":', 1) ? NAMED : NUMBERED;
  for (let at = 1; ; at++) {
    entry.lastIndex = at;
    const match = entry.exec(text);
    if (match === null) return null;
    ids.push(Number(match[1]));
    values.push(Number(match[2]));
    at = entry.lastIndex;
    const next = text.charCodeAt(at);
    if (next === CLOSE) return { ids, values, start, end: start + at + 1 };
    if (next !== COMMA) return null;
  }
}
