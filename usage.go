package cay

import (
	"math/big"
	"math/bits"
	"strings"
	"time"
)

// Meter names something that is counted of what a team uses.
type Meter string

// The meters. A sandbox is counted while it runs; what was promised to it and
// what it took are told apart.
const (
	VCPUSeconds      Meter = "vcpu_seconds"       // processors of running sandboxes, for how long
	MemoryGiBSeconds Meter = "memory_gib_seconds" // memory of running sandboxes, for how long
	CPUUsedSeconds   Meter = "cpu_used_seconds"   // processor time that they took
	StorageGiBHours  Meter = "storage_gib_hours"  // files of snapshots, for how long
	VolumeGiBHours   Meter = "volume_gib_hours"   // what volumes take of the disk, for how long
	EgressBytes      Meter = "egress_bytes"       // that sandboxes sent, answers to their clients included
	Creates          Meter = "creates"            // sandboxes that began to run for the first time, forks as well
	BuildSeconds     Meter = "build_seconds"      // that builds of templates took
	ModelInput       Meter = "model_input_tokens" // tokens that sandboxes sent to models
	ModelOutput      Meter = "model_output_tokens"
	// Money is what the others cost. It has no price of its own.
	Money Meter = "money"
)

// MeterInfo describes a meter. Amounts are whole raw units; PerUnit of them are
// one of what the meter's name says.
type MeterInfo struct {
	Meter   Meter
	PerUnit int64
	Meaning string
}

// Meters lists all meters, Money last.
func Meters() []MeterInfo {
	return []MeterInfo{
		{VCPUSeconds, 1000, "Processors that running sandboxes were promised, times the seconds that they ran."},
		{MemoryGiBSeconds, 1024 * 1000, "Memory that running sandboxes were promised, in GiB, times the seconds that they ran."},
		{CPUUsedSeconds, 1_000_000, "Processor time that sandboxes took."},
		{StorageGiBHours, 1024 * 3_600_000, "Files of snapshots in GiB, times the hours that they were kept: what paused sandboxes, checkpoints, snapshots and templates have saved."},
		{VolumeGiBHours, 1024 * 3_600_000, "Disk that volumes take, in GiB, times the hours that they took it, mounted or not."},
		{EgressBytes, 1, "Bytes that sandboxes sent, answers to their clients included."},
		{Creates, 1, "Sandboxes that were started, forks as well."},
		{BuildSeconds, 1000, "Time that builds of templates took."},
		{ModelInput, 1, "Tokens that sandboxes sent to models of the team's providers, those from a provider's cache included."},
		{ModelOutput, 1, "Tokens that these models answered, those of their reasoning included."},
		{Money, 1_000_000_000, "The cost of the others by the prices of the time."},
	}
}

// Info describes a meter; ok is false when there is no such meter.
func (m Meter) Info() (info MeterInfo, ok bool) {
	for _, info := range Meters() {
		if info.Meter == m {
			return info, true
		}
	}
	return MeterInfo{}, false
}

// Amounts are how much of each meter, in raw units. The zero value is nothing.
type Amounts struct {
	VCPU    int64 // processors × milliseconds
	Memory  int64 // MiB × milliseconds
	CPU     int64 // microseconds
	Storage int64 // MiB × milliseconds
	Sent    int64 // bytes
	Creates int64
	Build   int64 // milliseconds
	Money   int64 // 10⁻⁹ of the currency
	Volume  int64 // MiB × milliseconds
	Input   int64 // tokens to models
	Output  int64 // tokens from them
}

// Of returns the amount of one meter.
func (a Amounts) Of(m Meter) int64 {
	if p := a.at(m); p != nil {
		return *p
	}
	return 0
}

func (a *Amounts) at(m Meter) *int64 {
	switch m {
	case VCPUSeconds:
		return &a.VCPU
	case MemoryGiBSeconds:
		return &a.Memory
	case CPUUsedSeconds:
		return &a.CPU
	case StorageGiBHours:
		return &a.Storage
	case VolumeGiBHours:
		return &a.Volume
	case EgressBytes:
		return &a.Sent
	case Creates:
		return &a.Creates
	case BuildSeconds:
		return &a.Build
	case ModelInput:
		return &a.Input
	case ModelOutput:
		return &a.Output
	case Money:
		return &a.Money
	}
	return nil
}

// Add adds other amounts.
func (a *Amounts) Add(b Amounts) {
	for _, m := range Meters() {
		*a.at(m.Meter) += b.Of(m.Meter)
	}
}

// Ran is what a sandbox is counted for that ran for a time.
func Ran(l Limits, d time.Duration) Amounts {
	ms := d.Milliseconds()
	return Amounts{VCPU: int64(l.CPUs) * ms, Memory: int64(l.MemoryMB) * ms}
}

// Stored is what that many bytes are counted for that were kept for a time.
func Stored(n int64, d time.Duration) Amounts {
	return Amounts{Storage: scale(n, d.Milliseconds(), 1<<20)}
}

// StoredInVolumes is what that many bytes in volumes are counted for that were
// kept for a time.
func StoredInVolumes(n int64, d time.Duration) Amounts {
	return Amounts{Volume: scale(n, d.Milliseconds(), 1<<20)}
}

// scale is a × b ÷ c, rounded down and at most what an int64 holds, of numbers
// that are not negative.
func scale(a, b, c int64) int64 {
	high, low := bits.Mul64(uint64(max(0, a)), uint64(max(0, b)))
	if high >= uint64(c) {
		return 1<<63 - 1
	}
	n, _ := bits.Div64(high, low, uint64(c))
	return int64(min(n, 1<<63-1))
}

// Prices are what a unit of each meter costs. The zero value costs nothing.
type Prices struct {
	Currency string // e.g. EUR
	// Units has prices in 10⁻¹² of the currency for one unit of a meter.
	Units map[Meter]int64
}

// priceDigits is how many digits a price has behind the point.
const priceDigits = 12

// CostOf is what amounts cost, in raw units of Money.
func (p Prices) CostOf(a Amounts) int64 {
	var sum int64
	for _, m := range Meters() {
		if price := p.Units[m.Meter]; price > 0 {
			sum += scale(a.Of(m.Meter), price, m.PerUnit*1000)
		}
	}
	return sum
}

// ParsePrice reads a price: a decimal number with at most 12 digits behind the
// point.
func ParsePrice(text string) (int64, error) { return parseDecimal(text, 1_000_000_000_000) }

// ParseAmount reads an amount of a meter in its unit: a decimal number.
func (m MeterInfo) ParseAmount(text string) (int64, error) { return parseDecimal(text, m.PerUnit) }

// maxDecimal bounds a number that is given as text.
const maxDecimal = 32

// parseDecimal reads a number that is not negative, in units of 1/per.
func parseDecimal(text string, per int64) (int64, error) {
	wrong := Errorf(Invalid, "%.40q is no decimal number that is more than 0 and fits", text).WithHint("write it like 12.5")
	if text == "" || len(text) > maxDecimal || strings.Trim(text, "0123456789.") != "" {
		return 0, wrong
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return 0, wrong
	}
	r.Mul(r, new(big.Rat).SetInt64(per))
	n := new(big.Int).Quo(r.Num(), r.Denom()) // what is finer than a raw unit is cut off
	if !n.IsInt64() {
		return 0, wrong
	}
	return n.Int64(), nil
}

// Format writes an amount in the meter's unit, exactly or with 6 digits behind
// the point, and without zeros at the end.
func (m MeterInfo) Format(raw int64) string { return formatDecimal(raw, m.PerUnit, 6) }

// FormatPrice writes a price.
func FormatPrice(price int64) string {
	return formatDecimal(price, 1_000_000_000_000, priceDigits)
}

func formatDecimal(raw, per int64, digits int) string {
	text := big.NewRat(raw, per).FloatString(digits)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// Account is what an amount is counted to: a team, and what its use can be told
// apart by. Labels are entries of a sandbox's metadata whose keys the team has
// metered.
type Account struct {
	Team     TeamID
	Key      KeyID      // that made the sandbox; empty when it is not known
	Template TemplateID // empty for what is of none
	Labels   map[string]string
}

// Reading is what a sandbox's instance took, as its node counts it: at the first
// look at it and at the last one.
type Reading struct {
	Instance    InstanceID // empty for none
	First, Last Taken
}

// Taken is what an instance took since it started.
type Taken struct {
	CPU  time.Duration
	Sent int64 // bytes
}

// Period is how long a budget lasts, in UTC.
type Period string

// The periods.
const (
	Daily   Period = "day"
	Weekly  Period = "week" // from Monday
	Monthly Period = "month"
	OneTime Period = "once" // it never begins anew
)

// Bounds are the beginning and the end of the period that a moment is in. One
// that never begins anew has none: both are zero.
func (p Period) Bounds(at time.Time) (from, to time.Time) {
	y, m, d := at.UTC().Date()
	day := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	switch p {
	case Daily:
		return day, day.AddDate(0, 0, 1)
	case Weekly:
		from = day.AddDate(0, 0, -(int(day.Weekday())+6)%7)
		return from, from.AddDate(0, 0, 7)
	case Monthly:
		from = time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
		return from, from.AddDate(0, 1, 0)
	}
	return time.Time{}, time.Time{}
}

// BudgetAction is what happens when a budget is used up, besides that creates
// and resumes are refused.
type BudgetAction string

// The actions.
const (
	RefuseAtLimit BudgetAction = "refuse" // nothing: what runs may run on
	PauseAtLimit  BudgetAction = "pause"  // running sandboxes are paused with their memory
	KillAtLimit   BudgetAction = "kill"   // and here they end
)

// Budget bounds what is used in a period by a team, by a key of it, or by the
// sandboxes with an entry in their metadata.
type Budget struct {
	ID        BudgetID
	Team      TeamID
	Name      string // for people; may be empty
	Key       KeyID  // only what this key made; empty for any
	Label     string // only sandboxes with this key of metadata; empty for any
	Value     string // and this value of it
	Meter     Meter
	Limit     int64 // in raw units of the meter
	Period    Period
	Action    BudgetAction
	CreatedAt time.Time
	CreatedBy KeyID // empty for a person or the server
	Before    int64 // of OneTime: what its first hour had when it was made
	Told      int   // the last threshold that was told, in percent
	ToldOf    time.Time
}

// Thresholds are the parts of a budget that are told when they are used, in
// percent.
func Thresholds() []int { return []int{50, 80, 100} }

// Covers reports whether what a sandbox uses counts to the budget.
func (b Budget) Covers(s Sandbox) bool {
	if b.Team != s.Team || b.Key != "" && b.Key != s.Key {
		return false
	}
	value, has := s.Metadata[b.Label]
	return b.Label == "" || has && value == b.Value
}

// Since is the beginning of what counts to the budget at a moment, and Until
// when that ends; zero for never.
func (b Budget) Since(at time.Time) (from, until time.Time) {
	if b.Period == OneTime {
		return b.CreatedAt.UTC().Truncate(time.Hour), time.Time{}
	}
	return b.Period.Bounds(at)
}

// The bounds of what is metered by metadata.
const (
	MaxLabels     = 8   // keys of a team
	MaxLabelValue = 128 // bytes
	// OtherLabel stands for the values of metadata that a team has too many of.
	OtherLabel = "(other)"
)
