import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type { Finding } from './finding.ts';
import { sentencesOf } from './sentences.ts';

/**
 * A fact of the repository that proves a denial: a path that does not exist, or a file or folder that has or lacks a text. Such a text is, for
 * example, the title of a test.
 */
export type Proof =
  | { readonly missing: string }
  | { readonly in: string; readonly has: string }
  | { readonly in: string; readonly lacks: string };

/** A sentence of a page which states that floe does not have or accept something. `says` is a part of the sentence. */
export type Denial = { readonly page: string; readonly says: string; readonly proofs: readonly Proof[] };

/** Heading of a list of what is missing. The first sentence of each item is a denial. */
const MISSING = /^not there yet$/i;

/**
 * Matches sentences which state that something is missing or refused. Sentences about what happens to a request, such as "a late result is
 * refused", do not match, because no name in code font is their subject. Neither do conditions, such as "when there is no image".
 */
const DENIAL =
  /\b(?:is|are) (?:not (?:yet )?supported|unsupported|not implemented)\b|\b(?:is|are) `unsupported`|\b(?:not there|not implemented) yet\b|^(?:[A-Z]\w*'s )?`[^`]+`(?:[^`]|`[^`]*`){0,60}? (?:is|are) refused\b/i;

/** Matches further denials, except in tables, where they are conditions. */
const ABSENCE = /^there (?:is|are) no\b/i;

/** Pages that are not checked for denials: pages that are generated from the code, and pages about other systems. */
const LEFT_OUT = /^docs\/(?:decisions\/|measurements\/|comparison\.md)|^(?!docs\/|README\.md)/;

/**
 * Compares the denials of the pages with `known`. Reports a denial that is not known, a known denial that no page contains, and a known denial
 * whose proof no longer holds.
 */
export function checkDenials(
  root: string,
  pages: readonly { readonly path: string; readonly markdown: string }[],
  known: readonly Denial[],
): Finding[] {
  const used = new Set<Denial>();
  const findings: Finding[] = [];
  for (const { path, markdown } of pages) {
    if (LEFT_OUT.test(path) || /^Generated from /m.test(markdown.slice(0, 400))) continue;
    for (const { text, line, heading, isFirst, isCell } of sentencesOf(markdown)) {
      const registered = known.filter(({ page, says }) => page === path && text.includes(says));
      for (const denial of registered) used.add(denial);
      const denies = DENIAL.test(text) || (!isCell && ABSENCE.test(text)) || (isFirst && MISSING.test(heading));
      if (registered.length > 0 || !denies) continue;
      const problem = `"${text}" denies something without a proof: add it to verify/docs/known-denials.ts with one, or reword it`;
      findings.push({ where: `${path}:${line}`, problem });
    }
  }
  for (const denial of known) {
    const { page, says } = denial;
    if (!used.has(denial)) {
      findings.push({ where: page, problem: `no sentence has "${says}": remove it from verify/docs/known-denials.ts` });
    }
    for (const proof of denial.proofs) {
      if (!holds(root, proof)) {
        findings.push({
          where: page,
          problem: `"${says}" is not true any more: ${failureOf(proof)}; correct the page`,
        });
      }
    }
  }
  return findings;
}

function holds(root: string, proof: Proof): boolean {
  if ('missing' in proof) return !existsSync(join(root, proof.missing));
  const file = join(root, proof.in);
  if (!existsSync(file)) return false;
  const texts = statSync(file).isDirectory()
    ? readdirSync(file, { recursive: true, encoding: 'utf8' })
        .map((name) => join(file, name))
        .filter((path) => statSync(path).isFile())
        .map((path) => readFileSync(path, 'utf8'))
    : [readFileSync(file, 'utf8')];
  return 'has' in proof
    ? texts.some((text) => text.includes(proof.has))
    : !texts.some((text) => text.includes(proof.lacks));
}

function failureOf(proof: Proof): string {
  if ('missing' in proof) return `there is ${proof.missing}`;
  return 'has' in proof ? `${proof.in} has no "${proof.has}"` : `${proof.in} is missing or has "${proof.lacks}"`;
}
