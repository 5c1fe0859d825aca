import { counter } from './kept-counter.js';

export default counter('node');
