import { effect, signal } from '@preact/signals';

const THEMES = ['system', 'light', 'dark'] as const;
type Theme = (typeof THEMES)[number];
const STORED_THEME = 'floe-theme';

export const theme = signal<Theme>(THEMES.find((name) => name === localStorage.getItem(STORED_THEME)) ?? 'system');

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem(STORED_THEME, theme.value);
});

/** Changes to the next theme. */
export function turnTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? 'system';
}
