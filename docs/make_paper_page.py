"""Make the picture of tables and figures in a paper: `python docs/make_paper_page.py`.

It needs pdflatex and pdftoppm (texlive-latex-recommended, texlive-fonts-recommended and
poppler-utils of Debian). The run is computed here, in about two minutes.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

import heatproof as hp

PICTURE = Path(__file__).parent / "img/paper-page.png"
METHODS = ["saliency", "ixg", "ig", "ig|abs", "gradcam", "layercam", "random", "edges", "center"]
PROTOCOLS = [{"name": "sds", "baseline": ["zero", "blur"]}, "deletion"]
PAPER = r"""\documentclass[10pt,twocolumn]{article}
\usepackage[margin=0.7in,top=0.6in,columnsep=0.3in]{geometry}
\usepackage{times,booktabs,graphicx}
\pagestyle{empty}
\renewcommand{\topfraction}{.95}\renewcommand{\textfraction}{.02}\setcounter{topnumber}{3}
\makeatletter\newcommand{\tablecaption}[1]{\def\@captype{table}\caption{#1}}\makeatother
\begin{document}
\twocolumn[\centering\footnotesize
\tablecaption{Mean scores with 95\,\% intervals: \texttt{heatproof table RUN ranking -o wide.tex}.}
\input{wide.tex}\vspace{2em}]
\begin{table}[t]\centering\footnotesize
\caption{Letters in place of intervals: \texttt{--columns letters --digits 2}.}
\input{narrow.tex}
\end{table}
\begin{figure}[t]\centering
\includegraphics{ranking.pdf}
\caption{\texttt{heatproof figure RUN ranking --style column --protocol deletion}.}
\end{figure}
\begin{figure}[t]\centering
\includegraphics{curves.pdf}
\caption{\texttt{heatproof figure RUN curves --style column}.}
\end{figure}
\section{Experiments}
Attribution methods are evaluated on 64 images, by single deletion with two baselines and by
incremental deletion. Methods in bold may be the best of their setting. Tables and figures keep
the size of the text of the paper: they are included without a width.
\end{document}
"""


def main() -> None:
    """Compute a run, compile a page with its tables and figures, and make a picture of it."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        result = hp.evaluate(
            "paperbirds/resnet", "paperbirds:test", METHODS, PROTOCOLS, limit=64, out=here / "run"
        )
        (here / "wide.tex").write_text(result.to_latex(digits=2), encoding="utf-8")
        letters = result.to_latex(digits=2, columns="letters")
        (here / "narrow.tex").write_text(letters, encoding="utf-8")
        result.plot.ranking(style="column", protocol="deletion").savefig(here / "ranking.pdf")
        result.plot.curves(style="column").savefig(here / "curves.pdf")
        (here / "paper.tex").write_text(PAPER, encoding="utf-8")
        latex = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
        log = subprocess.run(latex, cwd=here, check=True, capture_output=True, text=True).stdout
        sys.stderr.writelines(f"{line}\n" for line in log.splitlines() if "Overfull" in line)
        draw = ["pdftoppm", "-r", "110", "-png", "-singlefile", "paper.pdf", "page"]
        subprocess.run(draw, cwd=here, check=True)
        page = Image.open(here / "page.png").convert("RGB").crop((0, 0, 935, 1080)).quantize(48)
        page.save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
