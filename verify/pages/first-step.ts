import { type Block, blocksOf, isShell } from './blocks.ts';

/**
 * What a page of docs/trainers promises to a reader who starts with an empty folder. `blocks` are the blocks of its sections "The first
 * step…". Where the trainer cannot run on this machine, they are the blocks of "The first samples…". `noStep` is then the first sentence of
 * that section, which states why; otherwise `null`.
 */
export type FirstStep = { readonly blocks: readonly Block[]; readonly noStep: string | null };

/** A section of a page. `line` is the number of the line with its title. */
type Section = { readonly title: string; readonly line: number; readonly text: string };

/** Reads a page. Throws an Error when its first sections promise nothing that can be checked. */
export function readFirstStep(page: string, markdown: string): FirstStep {
  const all = sectionsOf(markdown);
  const sections = all.filter(({ title }) => title.startsWith('The first '));
  const samples = sections.find(({ title }) => title.startsWith('The first samples'));
  const sectionOf = ({ line }: Block): Section | undefined => all.findLast((section) => section.line < line);
  const blocks = blocksOf(page, markdown)
    .filter((block) => sections.some((section) => section === sectionOf(block)))
    .map((block) => ({ ...block, notRun: null }));
  const last = blocks.findLast(({ language }) => isShell(language));
  if (last === undefined || last.quoted === null) {
    throw new Error(
      'the page needs a section "The first step" or "The first samples" that ends with commands and a line',
    );
  }
  return { blocks, noStep: samples === undefined ? null : firstSentence(samples.text) };
}

function sectionsOf(markdown: string): Section[] {
  const sections: { title: string; line: number; lines: string[] }[] = [];
  let inBlock = false;
  for (const [index, line] of markdown.split('\n').entries()) {
    if (line.startsWith('```')) inBlock = !inBlock;
    // A comment in a block of commands begins with `#`, like a title.
    if (!inBlock && line.startsWith('## ')) sections.push({ title: line.slice(3), line: index + 1, lines: [] });
    else sections.at(-1)?.lines.push(line);
  }
  return sections.map(({ lines, ...section }) => ({ ...section, text: lines.join('\n') }));
}

function firstSentence(section: string): string {
  const paragraph = section.trim().split('\n\n')[0] ?? '';
  return paragraph.replaceAll('\n', ' ').split(/(?<=\.) /)[0] ?? '';
}
