import type Libsql from 'libsql';
import { queryWords, splitNames } from '../search/words.ts';
import { PART_LINES, partOf } from './parts.ts';
import { similarity } from './similar-names.ts';

/** How the results of a query were found, from the most to the least exact way. */
export type MatchKind = 'entity' | 'fuzzy' | 'substring' | 'words';

/** A definition, a line or a part of a file. Lines are numbered from 1. */
export type CodeHit = {
  readonly path: string;
  readonly line: number;
  readonly lastLine: number;
  /** Kind and full name of a definition, such as `method Shop.add`; `null` for other hits. */
  readonly definition: string | null;
  readonly source: string;
};

export type CodeUse = { readonly path: string; readonly line: number };

export type CodeMatches = {
  /** `null` when nothing was found. */
  readonly kind: MatchKind | null;
  readonly hits: readonly CodeHit[];
  /** Number of all hits. `hits` has only the first of them. */
  readonly total: number;
  /** Places where the name of the found definitions is used. `useCount` is the number of all such places. */
  readonly uses: readonly CodeUse[];
  readonly useCount: number;
};

export type CodeQuery = {
  readonly text: string;
  /** Only files whose path contains this text are searched; empty for all files. */
  readonly path: string;
  readonly count: number;
};

type DefinitionRow = {
  readonly file: number;
  readonly file_path: string;
  readonly name: string;
  readonly path: string;
  readonly kind: string;
  readonly line: number;
  readonly last_line: number;
};

/** Number of uses that are listed. */
const LISTED_USES = 10;
/** Number of lines that are shown of the only definition that was found, and of each of several definitions. */
const LINES_OF_ONE = 80;
const LINES_OF_SEVERAL = 6;
/** Maximum number of characters that are shown of a line. */
const MAX_LINE_CHARS = 400;
/** Smallest similarity at which a name is a fuzzy match. */
const SIMILAR = 0.6;
/** After comparing this many names, or searching this many files, the search yields to other work of the process. */
const NAMES_AT_A_TIME = 2_000;
const FILES_AT_A_TIME = 8;
/** Number of hits by words that are read before hits in other paths are left out. */
const WORD_HITS = 200;

const DEFINITIONS = `
  select file, files.path as file_path, name, definitions.path as path, kind, line, last_line
  from definitions join files on files.number = file
  where instr(files.path, ?) > 0 and `;

/**
 * Answers queries about code from an index. It searches for the exact name of a definition first, then for similar names, then for the text,
 * then for the words. The first search with results ends the query.
 */
export class CodeSearch {
  private readonly raw: Libsql.Database;
  private names: readonly string[] | null = null;

  constructor(raw: Libsql.Database) {
    this.raw = raw;
  }

  /** Returns the digests of the files by their paths. Throws an error when the index file is damaged. */
  digests(): ReadonlyMap<string, string> {
    const rows = this.rows<{ path: string; digest: string }>('select path, digest from files');
    return new Map(rows.map(({ path, digest }) => [path, digest]));
  }

  /** Returns the matches of a query. Regularly yields to other work of the process. Rejects with the reason of `signal`. */
  async find(query: CodeQuery, signal: AbortSignal): Promise<CodeMatches> {
    const text = query.text.trim();
    const exact = this.exact(text, query.path);
    if (exact.length > 0) return this.definitions('entity', exact, query);
    const similar = await this.similar(text, query, signal);
    if (similar.length > 0) return this.definitions('fuzzy', similar, query);
    const lines = await this.lines(text, query, signal);
    if (lines.total > 0) return { kind: 'substring', ...lines, uses: [], useCount: 0 };
    const parts = this.parts(text, query);
    return { kind: parts.length > 0 ? 'words' : null, hits: parts, total: parts.length, uses: [], useCount: 0 };
  }

  /**
   * Returns the definitions with this name, or with a full name that ends in it. If the case of a definition matches exactly, definitions in
   * another case are left out.
   */
  private exact(text: string, path: string): readonly DefinitionRow[] {
    const full = text
      .replace(/\(.*$/s, '')
      .replaceAll(/::|#|->/g, '.')
      .replace(/^\.+/, '');
    const name = full.slice(full.lastIndexOf('.') + 1);
    if (name === '') return [];
    const rows = this.rows<DefinitionRow>(
      `${DEFINITIONS} lower(name) = lower(?) order by files.path, line`,
      path,
      name,
    );
    const fitting = rows.filter((row) => full === name || endsWithName(row.path, full) || inFile(row, full, name));
    const sameCase = fitting.filter((row) => row.name === name);
    return sameCase.length > 0 ? sameCase : fitting;
  }

  private async similar(
    text: string,
    { path, count }: CodeQuery,
    signal: AbortSignal,
  ): Promise<readonly DefinitionRow[]> {
    if (!/^[\w.$]{3,100}$/.test(text)) return [];
    const wanted = text.slice(text.lastIndexOf('.') + 1);
    this.names ??= this.rows<{ name: string }>('select distinct name from definitions').map(({ name }) => name);
    const scored: { readonly name: string; readonly score: number }[] = [];
    for (const [index, name] of this.names.entries()) {
      if (index % NAMES_AT_A_TIME === 0) await otherWork(signal);
      const score = similarity(wanted, name);
      if (score >= SIMILAR) scored.push({ name, score });
    }
    scored.sort((a, b) => b.score - a.score || a.name.length - b.name.length || (a.name < b.name ? -1 : 1));
    const rows: DefinitionRow[] = [];
    for (const { name } of scored.slice(0, count)) {
      rows.push(...this.rows<DefinitionRow>(`${DEFINITIONS} name = ? order by files.path, line`, path, name));
    }
    return rows;
  }

  private definitions(kind: MatchKind, rows: readonly DefinitionRow[], { count }: CodeQuery): CodeMatches {
    const limit = rows.length === 1 ? LINES_OF_ONE : LINES_OF_SEVERAL;
    const hits = rows.slice(0, count).map((row) => ({
      path: row.file_path,
      line: row.line,
      lastLine: row.last_line,
      definition: `${row.kind} ${row.path}`,
      source: this.source(row.file, row.line, Math.min(row.last_line, row.line + limit - 1)),
    }));
    const [first] = rows;
    const names = kind === 'entity' && first !== undefined ? first.name : null;
    const [total] =
      names === null ? [] : this.rows<{ count: number }>('select count(*) as count from uses where name = ?', names);
    const uses =
      names === null
        ? []
        : this.rows<CodeUse>(
            'select path, line from uses join files on number = file where name = ? order by path, line limit ?',
            names,
            LISTED_USES,
          );
    return { kind, hits, total: rows.length, uses, useCount: total?.count ?? 0 };
  }

  /** Returns the lines that contain the text. In the text, `*` matches any characters within a line. */
  private async lines(
    text: string,
    { path, count }: CodeQuery,
    signal: AbortSignal,
  ): Promise<Pick<CodeMatches, 'hits' | 'total'>> {
    const pieces = text
      .toLowerCase()
      .split('*')
      .filter((piece) => piece !== '');
    if (pieces.length === 0 || text.includes('\n')) return { hits: [], total: 0 };
    const hits: CodeHit[] = [];
    let total = 0;
    for (const [index, { number, path: name }] of this.filesIn(path).entries()) {
      if (index % FILES_AT_A_TIME === 0) await otherWork(signal);
      const content = this.textOf(number);
      if (!hasInOrder(content.toLowerCase(), pieces)) continue;
      for (const [row, line] of content.split('\n').entries()) {
        if (!hasInOrder(line.toLowerCase(), pieces)) continue;
        total++;
        const source = line.trim().slice(0, MAX_LINE_CHARS);
        if (hits.length < count) hits.push({ path: name, line: row + 1, lastLine: row + 1, definition: null, source });
      }
    }
    return { hits, total };
  }

  /** Returns the parts of files that contain the words, ranked by BM25. */
  private parts(text: string, { path, count }: CodeQuery): readonly CodeHit[] {
    const words = queryWords(splitNames(text));
    if (words.length === 0) return [];
    const match = words.map((word) => `"${word}"`).join(' OR ');
    const rows = this.rows<{ row: number }>(
      'select rowid as row, bm25(words, 1.0, 2.0) as cost from words where words match ? order by cost limit ?',
      match,
      WORD_HITS,
    );
    const hits: CodeHit[] = [];
    for (const { row } of rows) {
      if (hits.length === count) break;
      const { file, line } = partOf(row);
      const [found] = this.rows<{ path: string }>(
        'select path from files where number = ? and instr(path, ?) > 0',
        file,
        path,
      );
      if (found === undefined) continue;
      const all = this.textOf(file)
        .split('\n')
        .slice(line, line + PART_LINES);
      const best = bestLine(all, words);
      const from = Math.max(0, best - 2);
      const shown = all.slice(from, from + LINES_OF_SEVERAL).map((one) => one.slice(0, MAX_LINE_CHARS));
      hits.push({
        path: found.path,
        line: line + from + 1,
        lastLine: line + from + shown.length,
        definition: null,
        source: shown.join('\n'),
      });
    }
    return hits;
  }

  private source(file: number, line: number, lastLine: number): string {
    const lines = this.textOf(file)
      .split('\n')
      .slice(line - 1, lastLine);
    return lines.map((one) => one.slice(0, MAX_LINE_CHARS)).join('\n');
  }

  private filesIn(path: string): readonly { readonly number: number; readonly path: string }[] {
    return this.rows('select number, path from files where instr(path, ?) > 0 order by path', path);
  }

  private textOf(file: number): string {
    const [row] = this.rows<{ text: string }>('select text from files where number = ?', file);
    return row?.text ?? '';
  }

  private rows<Row>(sql: string, ...values: readonly (string | number)[]): Row[] {
    return this.raw.prepare(sql).all(...values) as Row[];
  }
}

function endsWithName(path: string, full: string): boolean {
  const [one, other] = [`.${path.toLowerCase()}`, `.${full.toLowerCase()}`];
  return one.endsWith(other);
}

/** Whether the name is preceded by a module, such as `shop.cart.add` for `add` in `shop/cart.py`. */
function inFile({ file_path: path }: DefinitionRow, full: string, name: string): boolean {
  const module = full
    .slice(0, -name.length - 1)
    .replaceAll('.', '/')
    .toLowerCase();
  return path
    .toLowerCase()
    .replace(/\.[a-z]+$/, '')
    .endsWith(module);
}

function hasInOrder(line: string, pieces: readonly string[]): boolean {
  let from = 0;
  for (const piece of pieces) {
    const at = line.indexOf(piece, from);
    if (at < 0) return false;
    from = at + piece.length;
  }
  return true;
}

/** Returns the index of the line that contains the most of the words. */
function bestLine(lines: readonly string[], words: readonly string[]): number {
  const counts = lines.map((line) => {
    const lower = splitNames(line).toLowerCase();
    return words.filter((word) => lower.includes(word)).length;
  });
  return counts.indexOf(Math.max(...counts));
}

/** Lets the event loop handle pending events. Rejects with the reason of `signal`. */
async function otherWork(signal: AbortSignal): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve));
  signal.throwIfAborted();
}
