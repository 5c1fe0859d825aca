import { describe, expect, it } from 'vitest';
import { lastCodeBlock } from '../src/code-block.ts';

const TWO = 'First:\n```python\nprint(1)\n```\nthen\n~~~ C++ title\nint x;\n\n~~~\ndone';

describe('lastCodeBlock', () => {
  it.each<[string, string, string | null, string | null]>([
    ['the last block', TWO, null, 'int x;\n\n'],
    ['the last block of the language, in any case', TWO, 'PYTHON', 'print(1)\n'],
    ['a language with other characters than letters', TWO, 'c++', 'int x;\n\n'],
    ['no block of another language', TWO, 'c', null],
    ['no block in a text without one', 'print(1)', null, null],
    ['an empty block', '```\n```', null, ''],
    ['a block with Windows line ends', '```\r\na\r\n```', null, 'a\n'],
    ['a block that contains a shorter fence', '````\n```\na\n```\n````', null, '```\na\n```\n'],
    ['a block that contains a fence of the other kind', '```\n~~~\n```', null, '~~~\n'],
    ['a block that contains a fence with a language', '```\n```js\n```', null, '```js\n'],
    ['the last complete block before one that is cut off', '```\na\n```\n```\nb', null, 'a\n'],
    ['no block that begins with text before the fence', 'x ```\na\n```', null, null],
    ['no inline code', '```a```', null, null],
    ['no indented fence', '    ```\n    a\n    ```', null, null],
  ])('finds %s', (_, text, language, block) => {
    expect(lastCodeBlock(text, language)).toBe(block);
  });
});
