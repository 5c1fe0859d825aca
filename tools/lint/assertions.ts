import { type Argument, type CallExpression, type Expression, Visitor } from 'oxc-parser';
import type { Problem, SourceFile } from './source.ts';

/**
 * Reports assertions that cannot fail. `toMatchObject` compares the own properties of a regular expression, and a regular expression has none.
 */
export function checkAssertions(file: SourceFile): Problem[] {
  const problems: Problem[] = [];
  new Visitor({
    CallExpression: (call) => {
      if (!isMatch(call)) return;
      for (const start of call.arguments.flatMap(expressionsIn)) {
        const message = 'toMatchObject() accepts any value for a regular expression; use expect.stringMatching()';
        problems.push({ path: file.path, line: file.lineAt(start), message });
      }
    },
  }).visit(file.program);
  return problems;
}

function isMatch({ callee }: CallExpression): boolean {
  return (
    callee.type === 'MemberExpression' &&
    callee.property.type === 'Identifier' &&
    callee.property.name === 'toMatchObject'
  );
}

/** Returns the positions of the regular expressions in an object or array literal, except for those in the arguments of calls. */
function expressionsIn(value: Argument | Expression | null): number[] {
  if (value === null) return [];
  if (value.type === 'Literal') return 'regex' in value ? [value.start] : [];
  if (value.type === 'ArrayExpression') return value.elements.flatMap(expressionsIn);
  if (value.type !== 'ObjectExpression') return [];
  return value.properties.flatMap((property) => (property.type === 'Property' ? expressionsIn(property.value) : []));
}
