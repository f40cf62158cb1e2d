package usage

import "github.com/cay-run/cay"

// Ratios is the part that is used of each team's fullest budget, 1 when it is
// used up, as this server last looked: within a minute.
func (m *Meter) Ratios() map[cay.TeamID]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[cay.TeamID]float64)
	for team, p := range m.teams {
		for _, s := range p.slots {
			out[team] = max(out[team], float64(s.used)/float64(s.budget.Limit))
		}
	}
	return out
}
