import { render } from "preact";
import "./style.css";

render(<p>trainvitals</p>, document.getElementById("app")!);
