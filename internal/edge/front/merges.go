package front

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/cay-run/cay"
)

// lines are what a search of logs finds, as the API has it.
type lines struct {
	Lines      []json.RawMessage `json:"lines"`
	Complete   bool              `json:"complete"`
	Sandboxes  int               `json:"sandboxes"`
	Unanswered []cay.NodeID      `json:"unanswered,omitempty"`
}

// foundLines is the limit of a search that says none.
const foundLines = 200

// linesOf merges what a search of logs finds on each node: the newest lines of all, newest
// first. A line of a sandbox that has moved is on several nodes, and is found once.
func linesOf(r *http.Request) merge {
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil { // a node refuses a wrong one
		limit = foundLines
	}
	return func(bodies [][]byte) (any, error) {
		out := &lines{Lines: []json.RawMessage{}, Complete: true}
		type line struct {
			at   time.Time
			text string
		}
		var all []line
		most := map[line]int{} // how often one node has a line
		for _, body := range bodies {
			var one lines
			if err := json.Unmarshal(body, &one); err != nil {
				return nil, err
			}
			out.Complete = out.Complete && one.Complete
			out.Sandboxes += one.Sandboxes
			here := map[line]int{}
			for _, text := range one.Lines {
				var l struct{ Timestamp time.Time }
				if err := json.Unmarshal(text, &l); err != nil {
					return nil, err
				}
				it := line{l.Timestamp.UTC(), string(text)}
				if here[it]++; here[it] > most[it] {
					most[it]++
					all = append(all, it)
				}
			}
		}
		slices.SortStableFunc(all, func(a, b line) int { return b.at.Compare(a.at) })
		if len(all) > limit {
			all, out.Complete = all[:limit], false
		}
		for _, l := range all {
			out.Lines = append(out.Lines, json.RawMessage(l.text))
		}
		return out, nil
	}
}

// missingLines names nodes that may have more lines.
func missingLines(answer any, of []cay.NodeID) {
	found, _ := answer.(*lines)
	found.Complete, found.Unanswered = false, of
}

// diskUses adds up what each template takes on the disks of all nodes.
func diskUses(bodies [][]byte) (any, error) {
	type use struct {
		Template string `json:"templateID"`
		Own      int64  `json:"ownBytes"`
		Shared   int64  `json:"sharedBytes"`
	}
	out := []*use{}
	by := map[string]*use{}
	for _, body := range bodies {
		var all []use
		if err := json.Unmarshal(body, &all); err != nil {
			return nil, err
		}
		for _, one := range all {
			sum := by[one.Template]
			if sum == nil {
				sum = &use{Template: one.Template}
				by[one.Template] = sum
				out = append(out, sum)
			}
			sum.Own, sum.Shared = sum.Own+one.Own, sum.Shared+one.Shared
		}
	}
	return out, nil
}
