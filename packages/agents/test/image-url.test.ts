import { describe, expect, it } from 'vitest';
import { imageProblem } from '../src/image-url.ts';

const content = (url: string) => [
  { type: 'text' as const, text: 'look' },
  { type: 'image_url' as const, image_url: { url } },
];

describe('the images of a content', () => {
  it.each([
    'data:image/png;base64,iVBORw0=',
    'data:image/svg+xml;base64,AAAA',
    'https://example.com/a.png',
    'HTTP://a/b',
  ])('are accepted with the URL %s', (url) => {
    expect(imageProblem(content(url))).toBeNull();
  });

  it.each([
    ['data:image/png;base64,', 'an image is empty'],
    ['data:image/png;base64,abc', 'an image is not valid base64'],
    ['data:image/png;base64,ab\n=', 'an image is not valid base64'],
    ['data:text/html;base64,AAAA', 'the URL of an image is neither'],
    ['data:image/png,AAAA', 'the URL of an image is neither'],
    ['file:///etc/passwd', 'the URL of an image is neither'],
    ['', 'the URL of an image is neither'],
  ])('are refused with the URL %j', (url, problem) => {
    expect(imageProblem(content(url))).toContain(problem);
  });

  it('are not searched in a text', () => {
    expect(imageProblem('data:image/png;base64,?')).toBeNull();
    expect(imageProblem(null)).toBeNull();
  });
});
