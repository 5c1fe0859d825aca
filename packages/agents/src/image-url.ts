import type { Content } from '@floe-rl/core/schema';

const WEB = /^https?:\/\//i;
const DATA = /^data:image\/[a-z0-9.+-]+;base64,/i;
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;

/** Returns what is wrong with the first image of a content that no engine can read; `null` when there is none. */
export function imageProblem(content: Content | null): string | null {
  if (content === null || typeof content === 'string') return null;
  for (const part of content) {
    if (part.type !== 'image_url') continue;
    const problem = urlProblem(part.image_url.url);
    if (problem !== null) return problem;
  }
  return null;
}

function urlProblem(url: string): string | null {
  if (WEB.test(url)) return null;
  const [prefix] = DATA.exec(url) ?? [];
  if (prefix === undefined)
    return `the URL of an image is neither http(s) nor data:image/…;base64: ${url.slice(0, 40)}`;
  const data = url.slice(prefix.length);
  if (data === '') return 'an image is empty';
  return data.length % 4 === 0 && BASE64.test(data) ? null : 'an image is not valid base64';
}
