import { describe, expect, it } from 'vitest';
import { pageLines } from '../../../src/box/browser/accessibility.ts';

type Node = { role: string; name?: string; value?: string; properties?: Record<string, unknown>; inner?: Node[] };

/** Returns a tree as Chromium does: a list of nodes that name their children. */
function treeOf(root: Node) {
  const nodes: object[] = [];
  const add = ({ role, name = '', value, properties = {}, inner = [] }: Node): string => {
    const nodeId = String(nodes.length + 1);
    const node: Record<string, unknown> = {
      nodeId,
      backendDOMNodeId: 100 + nodes.length,
      role: { value: role },
      name: { value: name },
      ...(value === undefined ? {} : { value: { value } }),
      properties: Object.entries(properties).map(([key, of]) => ({ name: key, value: { value: of } })),
    };
    nodes.push(node);
    node.childIds = inner.map(add);
    return nodeId;
  };
  add(root);
  return { nodes };
}

describe('a page as text', () => {
  it('numbers what can be operated, and shows values, states and texts once', () => {
    const lines = pageLines(
      treeOf({
        role: 'RootWebArea',
        name: 'Shop',
        inner: [
          { role: 'heading', name: 'Tea', inner: [{ role: 'StaticText', name: 'Tea' }] },
          { role: 'textbox', name: 'Name', value: 'Ann', properties: { focused: true, required: true } },
          { role: 'generic', inner: [{ role: 'StaticText', name: 'plain   text' }] },
          { role: 'checkbox', name: 'Gift', properties: { checked: 'true', invalid: 'false' } },
          { role: 'generic', name: 'custom', properties: { focusable: true } },
        ],
      }),
      5,
    );
    expect(lines).toEqual([
      { text: 'heading "Tea"', nodeId: null },
      { text: '[5] textbox "Name" value "Ann" focused required', nodeId: 103 },
      { text: 'plain text', nodeId: null },
      { text: '[6] checkbox "Gift" checked', nodeId: 106 },
      { text: '[7] generic "custom"', nodeId: 107 },
    ]);
  });

  it('gives no numbers to the options of a closed list, which have no place on the page', () => {
    const option = (name: string): Node => ({ role: 'option', name, properties: { focusable: true } });
    const list: Node = { role: 'MenuListPopup', inner: [option('small'), option('large')] };
    const lines = pageLines(
      treeOf({ role: 'RootWebArea', inner: [{ role: 'combobox', name: 'Size', inner: [list] }] }),
      1,
    );
    expect(lines.map(({ text }) => text)).toEqual(['[1] combobox "Size"', '  option "small"', '  option "large"']);
  });

  it('survives trees that are deep, cyclic, or no trees', () => {
    let deep: Node = { role: 'button', name: 'end' };
    for (let depth = 0; depth < 5_000; depth++) deep = { role: 'generic', inner: [deep] };
    expect(pageLines(treeOf(deep), 1)).toEqual([{ text: '[1] button "end"', nodeId: expect.any(Number) }]);
    const cyclic = { nodes: [{ nodeId: '1', childIds: ['1', '2'], role: { value: 'button' }, name: { value: 'a' } }] };
    expect(pageLines(cyclic, 1)).toEqual([{ text: 'button "a"', nodeId: null }]);
    expect(pageLines({}, 1)).toEqual([]);
  });
});
