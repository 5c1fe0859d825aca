import { MIB } from '@floe-rl/core';

/**
 * Maximum length of one engine's metrics text in characters; a longer text is left out as faulty. vLLM's text has about 100,000 characters.
 */
const MAX_TEXT_CHARS = 4 * MIB;

const METRIC_NAME = /^[a-zA-Z_:][a-zA-Z0-9_:]*/;
const LABEL_NAME = /^[a-zA-Z_][a-zA-Z0-9_]*/;
const VALUE = /^(?:[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?Inf|NaN)$/;
const TYPES = new Set(['counter', 'gauge', 'histogram', 'summary', 'untyped']);
/**
 * Matches the names of metric families that the node itself exports. An engine's families with these prefixes are left out, because
 * Prometheus text may describe a family only once.
 */
const OWN_FAMILIES = /^(?:floe|process|nodejs)_/;
/** Suffixes that sample names may add to their family's name, keyed by the family's type. */
const SUFFIXES: Readonly<Record<string, readonly string[]>> = {
  histogram: ['_bucket', '_sum', '_count'],
  summary: ['_sum', '_count'],
};

export type EngineText = { readonly engineId: string; readonly pool: string; readonly text: string };

type Family = { type: string | null; help: string | null; readonly samples: string[] };
type Sample = { readonly name: string; readonly labels: string; readonly value: string };

/**
 * Merges the metrics of several engines into one Prometheus text. Every sample gets the labels `engine_id` and `pool`; an engine's own
 * labels with these names become `exported_engine_id` and `exported_pool`. Each family keeps the description of the first engine that has
 * it. The result leaves out:
 * - lines that are not samples, time stamps, and repeated series,
 * - families whose type differs from another engine's,
 * - families with a prefix that the node itself uses,
 * - texts longer than {@link MAX_TEXT_CHARS}.
 */
export function relabelledMetrics(texts: readonly EngineText[]): string {
  const families = new Map<string, Family>();
  for (const text of texts) if (text.text.length <= MAX_TEXT_CHARS) addEngine(families, text);
  const lines: string[] = [];
  for (const [name, { type, help, samples }] of families) {
    if (samples.length === 0) continue;
    if (help !== null) lines.push(`# HELP ${name} ${help}`);
    if (type !== null) lines.push(`# TYPE ${name} ${type}`);
    for (const sample of samples) lines.push(sample);
  }
  return lines.length === 0 ? '' : `${lines.join('\n')}\n`;
}

function addEngine(families: Map<string, Family>, { engineId, pool, text }: EngineText): void {
  const types = new Map<string, string>();
  const helps = new Map<string, string>();
  const samples: Sample[] = [];
  for (const line of text.split('\n')) {
    if (line.startsWith('#')) describe(line, types, helps);
    else {
      const sample = parseSample(line.trimEnd());
      if (sample !== null) samples.push(sample);
    }
  }
  const own = `engine_id="${escaped(engineId)}",pool="${escaped(pool)}"`;
  const seen = new Set<string>();
  for (const { name, labels, value } of samples) {
    const familyName = familyOf(name, types);
    const series = `${name}{${own}${labels}}`;
    if (OWN_FAMILIES.test(familyName) || seen.has(series)) continue;
    seen.add(series);
    const type = types.get(familyName) ?? null;
    const family = families.get(familyName) ?? { type, help: helps.get(familyName) ?? null, samples: [] };
    if (family.type === type) family.samples.push(`${series} ${value}`);
    families.set(familyName, family);
  }
}

function describe(line: string, types: Map<string, string>, helps: Map<string, string>): void {
  const [hash, keyword, name = '', ...rest] = line.trimEnd().split(' ');
  const text = rest.join(' ');
  if (hash !== '#' || METRIC_NAME.exec(name)?.[0] !== name) return;
  if (keyword === 'TYPE' && TYPES.has(text) && !types.has(name)) types.set(name, text);
  if (keyword === 'HELP' && !helps.has(name)) helps.set(name, printable(text));
}

/**
 * Replaces control characters in a metric's help text by spaces, and escapes each backslash that does not begin an escape of the Prometheus
 * format.
 */
function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are replaced.
  return text.replace(/[\u0000-\u001f\u007f]/g, ' ').replace(/\\(?![\\n])/g, '\\\\');
}

function familyOf(sampleName: string, types: ReadonlyMap<string, string>): string {
  if (types.has(sampleName)) return sampleName;
  for (const [type, suffixes] of Object.entries(SUFFIXES)) {
    for (const suffix of suffixes) {
      if (!sampleName.endsWith(suffix)) continue;
      const base = sampleName.slice(0, -suffix.length);
      if (types.get(base) === type) return base;
    }
  }
  return sampleName;
}

/** Parses `name{label="value",…} value [timestamp]`. Returns `null` for any other line. */
export function parseSample(line: string): Sample | null {
  const name = METRIC_NAME.exec(line)?.[0];
  if (name === undefined) return null;
  const parsed = line[name.length] === '{' ? parseLabels(line, name.length + 1) : { labels: '', end: name.length };
  if (parsed === null) return null;
  const [value = '', timestamp = '0', ...rest] = line
    .slice(parsed.end)
    .trim()
    .split(/[ \t]+/);
  if (!VALUE.test(value) || !/^-?\d+$/.test(timestamp) || rest.length > 0) return null;
  if (parsed.end === name.length && !/^[ \t]/.test(line.slice(name.length))) return null;
  return { name, labels: parsed.labels, value };
}

/**
 * Parses the labels of a Prometheus sample from `start`, the position after the opening brace. In the result, `labels` has a comma before
 * each label, and `end` is the position after the closing brace. Returns `null` for malformed labels.
 */
function parseLabels(line: string, start: number): { readonly labels: string; readonly end: number } | null {
  const names = new Set(['engine_id', 'pool']);
  let labels = '';
  let at = skipSpace(line, start);
  while (line[at] !== '}') {
    const name = LABEL_NAME.exec(line.slice(at, at + 256))?.[0];
    if (name === undefined) return null;
    at = skipSpace(line, at + name.length);
    if (line[at] !== '=') return null;
    at = skipSpace(line, at + 1);
    const end = endOfQuoted(line, at);
    if (end === null) return null;
    const shown = name === 'engine_id' || name === 'pool' ? `exported_${name}` : name;
    if (names.has(shown)) return null;
    names.add(shown);
    labels += `,${shown}=${line.slice(at, end)}`;
    at = skipSpace(line, end);
    if (line[at] === ',') at = skipSpace(line, at + 1);
    else if (line[at] !== '}') return null;
  }
  return { labels, end: at + 1 };
}

/**
 * Returns the position after the closing quote of the quoted text at `start`; `null` when there is no such text or it contains an escape
 * that the Prometheus format does not have.
 */
function endOfQuoted(line: string, start: number): number | null {
  if (line[start] !== '"') return null;
  for (let i = start + 1; i < line.length; i++) {
    const char = line.charCodeAt(i);
    if (char < 0x20) return null;
    if (line[i] === '"') return i + 1;
    if (line[i] !== '\\') continue;
    i++;
    if (line[i] !== '\\' && line[i] !== '"' && line[i] !== 'n') return null;
  }
  return null;
}

function skipSpace(line: string, at: number): number {
  let i = at;
  while (line[i] === ' ' || line[i] === '\t') i++;
  return i;
}

function escaped(text: string): string {
  return text.replace(/\\/g, '\\\\').replace(/"/g, '\\"').replace(/\n/g, '\\n');
}
