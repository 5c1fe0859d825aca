import { describe, expect, it } from 'vitest';
import { type Content, contentText } from '../../src/schema/chat.ts';

describe('the text of a content', () => {
  const content: Content = [
    { type: 'text', text: 'one' },
    { type: 'image_url', image_url: { url: 'data:image/png;base64,AA' } },
    { type: 'text', text: 'two' },
  ];

  it('is the content itself where that is a text, and empty where there is none', () => {
    expect(['hi', null, undefined, []].map((one) => contentText(one))).toEqual(['hi', '', '', '']);
  });

  it('joins the parts without the images, unless a text stands for an image', () => {
    expect(contentText(content)).toBe('onetwo');
    expect(contentText(content, { separator: '\n' })).toBe('one\ntwo');
    expect(contentText(content, { image: '<image>' })).toBe('one<image>two');
    expect(contentText(content, { separator: '\n', image: '[image]' })).toBe('one\n[image]\ntwo');
  });
});
