import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { repositoryRoot } from '../../tools/repository.ts';
import { type FoundMutant, loadInstrumenter, type Position } from './packages.ts';

/** The folders whose code is mutated, by name. They contain the code that carries tokens, rollouts and their state. */
const FOLDERS: Readonly<Record<string, string>> = {
  engines: 'packages/capture/src/engines',
  gateway: 'packages/node/src/gateway',
  proxy: 'packages/capture/src/proxy',
  rollout: 'packages/server/src/rollout',
  store: 'packages/server/src/store',
  tokens: 'packages/capture/src/tokens',
};

/** The names of the folders whose code is mutated. */
export const ROOMS: readonly string[] = Object.keys(FOLDERS);

/** One change of one source file. Lines and columns are counted from 0. */
export type Mutant = {
  /** Path of the file relative to the repository root. */
  readonly file: string;
  readonly start: Position;
  readonly end: Position;
  /** The kind of the change, such as `ConditionalExpression`. */
  readonly mutator: string;
  readonly original: string;
  readonly replacement: string;
  /** The source line on which the mutant starts, without the indentation. */
  readonly line: string;
  /** The source line before {@link line}, without the indentation. */
  readonly before: string;
};

/** Returns the text that identifies a mutant in one version of the sources. */
export function keyOf(mutant: Pick<Mutant, 'file' | 'start' | 'end' | 'mutator' | 'replacement'>): string {
  const { file, start, end, mutator, replacement } = mutant;
  return `${file}:${start.line}:${start.column}-${end.line}:${end.column} ${mutator} ${replacement}`;
}

/** Returns a mutant's room: the folder below `src/` of its package that contains its file, such as `tokens`. */
export function roomOf({ file }: Pick<Mutant, 'file'>): string {
  return file.split('/')[3] ?? '';
}

/** Returns the paths of the source files in the folders {@link ROOMS}, relative to the repository root. */
export function mutatedFiles(): readonly string[] {
  return Object.values(FOLDERS)
    .flatMap((folder) =>
      readdirSync(join(repositoryRoot(), folder), { recursive: true, encoding: 'utf8' })
        .filter((path) => path.endsWith('.ts'))
        .map((path) => `${folder}/${path.replaceAll('\\', '/')}`),
    )
    .sort();
}

/** Returns all mutants that Stryker can make of the files, in the order of the sources. */
export async function allMutants(files: readonly string[]): Promise<readonly Mutant[]> {
  const { Instrumenter } = await loadInstrumenter();
  const silent = (): void => {};
  const instrumenter = new Instrumenter({ debug: silent, info: silent, warn: silent, isDebugEnabled: silent });
  const sources = files.map((name) => ({
    name,
    mutate: true as const,
    content: readFileSync(join(repositoryRoot(), name), 'utf8'),
  }));
  const { mutants } = await instrumenter.instrument(sources, { plugins: null, excludedMutations: [], ignorers: [] });
  const lines = new Map(sources.map(({ name, content }) => [name, content.split('\n')]));
  return mutants.map((found) => mutantOf(found, lines.get(found.fileName) ?? []));
}

function mutantOf({ fileName, mutatorName, replacement, location }: FoundMutant, lines: readonly string[]): Mutant {
  const { start, end } = location;
  const text = lines.slice(start.line, end.line + 1).join('\n');
  const lastLine = lines[end.line] ?? '';
  return {
    file: fileName,
    start,
    end,
    mutator: mutatorName,
    original: text.slice(start.column, text.length - lastLine.length + end.column),
    replacement,
    line: (lines[start.line] ?? '').trim(),
    before: (lines[start.line - 1] ?? '').trim(),
  };
}

/**
 * Draws `count` mutants, each with the same chance, or all when there are no more. The seed and the text of a mutant decide whether it is drawn, so
 * that a change of the sources changes the draw only where mutants were changed.
 */
export function draw(mutants: readonly Mutant[], count: number, seed: number): readonly Mutant[] {
  const occurrences = new Map<string, number>();
  const ranked = mutants.map((mutant) => {
    const { file, before, line, original, replacement, mutator } = mutant;
    const text = JSON.stringify([seed, file, before, line, original, replacement, mutator]);
    const earlier = occurrences.get(text) ?? 0;
    occurrences.set(text, earlier + 1);
    return { mutant, rank: createHash('sha256').update(`${text}${earlier}`).digest('hex') };
  });
  ranked.sort((a, b) => (a.rank < b.rank ? -1 : 1));
  return ranked.slice(0, count).map(({ mutant }) => mutant);
}
