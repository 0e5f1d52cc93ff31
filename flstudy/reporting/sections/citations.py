"""Whom to cite."""

from collections.abc import Sequence

from flstudy.reporting.citations import Citation, bibtex, citations, names_used
from flstudy.reporting.findings import Findings
from flstudy.reporting.section import Content, Listing, ReportSection
from flstudy.reporting.sections.sensitivity import sensitivities
from flstudy.reporting.tables import Cells


class CitationSection(ReportSection):
    """The works behind what was used, on the page and as citations.bib."""

    order = 120

    def of_study(self, found: Findings) -> Content:
        importances = any(one.importances for one in found.once(sensitivities))
        cited = citations([found.results], importances=importances)
        used = f"Used here: {', '.join(names_used(found.results))}."
        return _content("Whom to cite for what this study used.", cited, used)

    def of_studies(self, found: Sequence[Findings]) -> Sequence[Content]:
        cited = citations([one.results for one in found], ranks=True)
        return [_content("Whom to cite for what these studies used.", cited)]


def _content(title: str, cited: Sequence[Citation], lead: str = "") -> Content:
    text = bibtex(cited)
    works = {"For": [", ".join(one.used) for one in cited], "Key": [one.key for one in cited]}
    return Content(
        name="Citations",
        title=title,
        lead=lead,
        tables=[Cells.from_columns("Works", works, (0, 1))],
        listings=[Listing(title="BibTeX", text=text, folded=True)],
        files={"citations.bib": text},
        values={"citations": [one.key for one in cited]},
    )
