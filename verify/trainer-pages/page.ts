/** A block of a page: a file of that name, commands for a shell, or the line that the commands before it print last. */
export type Block =
  | { readonly kind: 'file'; readonly name: string; readonly text: string }
  | { readonly kind: 'commands'; readonly text: string }
  | { readonly kind: 'printed'; readonly line: string };

/**
 * What a page of docs/trainers promises to a reader who starts with an empty folder. `blocks` are those of its sections "The first step…" or,
 * where the trainer cannot run on this machine, "The first samples…". `noStep` is null, or why there is no step: the section's first sentence.
 */
export type Page = { readonly blocks: readonly Block[]; readonly noStep: string | null };

type Section = { readonly title: string; readonly text: string };

/** A number as programs print it. NaN is none, so a line with one does not have the form of a quoted line. */
const NUMBER = /-?\d+(?:\.\d+)?(?:e[-+]?\d+)?/g;

/** Reads a page. Throws an Error when its first sections promise nothing that can be checked. */
export function readPage(markdown: string): Page {
  const sections = sectionsOf(markdown).filter(({ title }) => title.startsWith('The first '));
  const samples = sections.find(({ title }) => title.startsWith('The first samples'));
  const blocks = sections.flatMap(({ text }) => blocksOf(text));
  const last = blocks.findLastIndex(({ kind }) => kind === 'commands');
  if (last < 0 || blocks[last + 1]?.kind !== 'printed') {
    throw new Error(
      'the page needs a section "The first step" or "The first samples" that ends with commands and a line',
    );
  }
  return { blocks, noStep: samples === undefined ? null : firstSentence(samples.text) };
}

/**
 * Returns what is wrong with the last line that commands printed; null when it is the quoted one. Numbers may differ, except that the last one
 * must not be 0: it is the size of a gradient or of a change of weights, or a number of samples.
 */
export function differenceOf(printed: string, quoted: string): string | null {
  const text = printed.trim();
  const form = quoted.split(NUMBER).map(escaped).join(`(?:${NUMBER.source})`);
  if (!new RegExp(`^${form}$`).test(text)) return `it printed ${JSON.stringify(text)}, not ${JSON.stringify(quoted)}`;
  const last = text.match(NUMBER)?.at(-1);
  return last !== undefined && Number(last) === 0 ? `the last number of ${JSON.stringify(text)} is 0` : null;
}

function sectionsOf(markdown: string): Section[] {
  const sections: { title: string; lines: string[] }[] = [];
  let inBlock = false;
  for (const line of markdown.split('\n')) {
    if (line.startsWith('```')) inBlock = !inBlock;
    // A comment in a block of commands begins like a title.
    if (!inBlock && line.startsWith('## ')) sections.push({ title: line.slice(3), lines: [] });
    else sections.at(-1)?.lines.push(line);
  }
  return sections.map(({ title, lines }) => ({ title, text: lines.join('\n') }));
}

function blocksOf(section: string): Block[] {
  return [...section.matchAll(/^```(\w+)\n(.*?)^```$/gms)].flatMap(([, language = '', text = '']): Block[] => {
    const name = /^# (\S+\.\w+)\n/.exec(text)?.[1];
    if (language === 'text') return [{ kind: 'printed', line: text.trim() }];
    if (name !== undefined) return [{ kind: 'file', name, text }];
    return language === 'sh' ? [{ kind: 'commands', text }] : [];
  });
}

function firstSentence(section: string): string {
  const paragraph = section.trim().split('\n\n')[0] ?? '';
  return paragraph.replaceAll('\n', ' ').split(/(?<=\.) /)[0] ?? '';
}

function escaped(text: string): string {
  return text.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&');
}
