import { render } from "preact";
import "./charts/charts.css";
import "./page/style.css";
import { printOnPaper } from "./charts/frame";
import { App } from "./page/App";

const place = document.getElementById("app");
if (place) render(<App />, place);
printOnPaper(document);
