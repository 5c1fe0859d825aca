import { render } from 'preact';
import { signInByAddress } from './api.ts';
import { App } from './app.tsx';
import './style.css';

signInByAddress();
window.addEventListener('hashchange', signInByAddress);
const page = document.getElementById('page');
if (page !== null) {
  page.replaceChildren();
  render(<App />, page);
}
