// Enforces what biome cannot know: which room may import which, how long files may be, and that time comes from core/clock.ts.
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const SRC = join(ROOT, 'src');

/** The import column of ARCHITECTURE.md. A file name instead of a room allows that file only. */
const MAY_IMPORT = {
  schema: [],
  core: ['schema'],
  tokens: ['schema', 'core'],
  dialects: ['schema', 'core'],
  engines: ['schema', 'core'],
  proxy: ['schema', 'core', 'dialects', 'engines', 'tokens'],
  runtimes: ['schema', 'core'],
  harnesses: ['schema', 'core'],
  evaluators: ['schema', 'core', 'runtimes/runtime.ts'],
  client: ['schema', 'core'],
  observe: ['schema', 'core'],
  store: ['schema', 'core'],
  rollout: ['schema', 'core', 'store'],
  gateway: [
    'schema',
    'core',
    'tokens',
    'dialects',
    'engines',
    'proxy',
    'runtimes',
    'harnesses',
    'evaluators',
    'client',
    'observe',
  ],
  sim: ['schema', 'core', 'tokens'],
  cluster: ['schema', 'core'],
  simulation: ['*'],
  cli: ['*'],
};

const MAX_LINES = 600;
const P90_LINES = 320;
const MEDIAN_LINES = 120;

/** Pattern, what to do instead, and the files that may use it. */
const FORBIDDEN = [
  [/\bset(Timeout|Interval)\(/, 'take a Clock (core/clock.ts)', ['core/clock.ts']],
  [/\bDate\.now\(/, 'take a Clock (core/clock.ts)', ['core/clock.ts']],
  [/\bexport default\b/, 'use a named export', []],
  [/\bexport \* from\b/, 'name what is exported', []],
  [/\bstructuredClone\(/, 'token data is never cloned', []],
  [/\b(TODO|FIXME|XXX)\b/, 'do it, or write it into an issue', []],
];
const BAD_NAMES = /(^|\/)(utils?|helpers?|common|misc)(\.ts|\/)/;

function files(dir) {
  return readdirSync(dir, { withFileTypes: true }).flatMap((entry) => {
    const path = join(dir, entry.name);
    return entry.isDirectory() ? files(path) : path.endsWith('.ts') ? [path] : [];
  });
}

const problems = [];
const lengths = [];
for (const file of files(SRC)) {
  const name = relative(SRC, file);
  const room = name.split('/')[0];
  const text = readFileSync(file, 'utf8');
  const lines = text.split('\n');
  lengths.push(lines.length);
  if (lines.length > MAX_LINES) problems.push(`${name}: ${lines.length} lines, more than ${MAX_LINES}`);
  if (BAD_NAMES.test(name)) problems.push(`${name}: a file is named for the noun it owns`);
  if (!(room in MAY_IMPORT)) problems.push(`${name}: the room ${room} is not in the import table`);
  for (const [index, line] of lines.entries()) {
    for (const [pattern, instead, allowed] of FORBIDDEN) {
      if (pattern.test(line) && !allowed.includes(name) && !/^\s*(\/\/|\*|\/\*)/.test(line)) {
        problems.push(`${name}:${index + 1}: ${pattern.source} is not used here; ${instead}`);
      }
    }
  }
  for (const match of text.matchAll(/(?:from|import)\s*\(?\s*['"](\.{1,2}\/[^'"]+)['"]/g)) {
    const target = relative(SRC, resolve(dirname(file), match[1]));
    const other = target.split('/')[0];
    const allowed = MAY_IMPORT[room] ?? [];
    if (other !== room && !allowed.includes('*') && !allowed.includes(other) && !allowed.includes(target)) {
      problems.push(`${name}: ${room} may not import ${target}`);
    }
  }
}
lengths.sort((a, b) => a - b);
const median = lengths[Math.floor(lengths.length / 2)];
const p90 = lengths[Math.floor(lengths.length * 0.9)];
if (median > MEDIAN_LINES) problems.push(`median file length ${median}, more than ${MEDIAN_LINES}`);
if (p90 > P90_LINES) problems.push(`p90 file length ${p90}, more than ${P90_LINES}`);

for (const problem of problems) console.error(problem);
console.error(
  `structure: ${lengths.length} files, median ${median}, p90 ${p90}, longest ${lengths.at(-1)} lines; ${problems.length} problems`,
);
process.exit(problems.length > 0 ? 1 : 0);
