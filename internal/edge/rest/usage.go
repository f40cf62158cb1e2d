package rest

import (
	"bytes"
	"context"
	"encoding/csv"
	"io"
	"maps"
	"mime"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/control/usage"
)

// GetUsage says what a team used.
func (o own) GetUsage(ctx context.Context, r cayv1.GetUsageRequestObject) (cayv1.GetUsageResponseObject, error) {
	q, asCSV, err := usageQuery(r.Params.From, r.Params.To, r.Params.Group, r.Params.Format, r.Params.Accept)
	if err != nil {
		return nil, err
	}
	report, err := o.usage.Usage(ctx, callerOf(ctx), q)
	if err != nil {
		return nil, err
	}
	if asCSV {
		text, err := usageCSV(report, q)
		return cayv1.GetUsage200TextCsvResponse{UsageTextCsvResponse: text}, err
	}
	return cayv1.GetUsage200JSONResponse{UsageJSONResponse: wireUsage(report, q)}, nil
}

// GetAllUsage says what all teams used.
func (o own) GetAllUsage(ctx context.Context, r cayv1.GetAllUsageRequestObject) (cayv1.GetAllUsageResponseObject, error) {
	q, asCSV, err := usageQuery(r.Params.From, r.Params.To, r.Params.Group, r.Params.Format, r.Params.Accept)
	if err != nil {
		return nil, err
	}
	report, err := o.usage.AllUsage(ctx, callerOf(ctx), q)
	if err != nil {
		return nil, err
	}
	if asCSV {
		text, err := usageCSV(report, q)
		return cayv1.GetAllUsage200TextCsvResponse{UsageTextCsvResponse: text}, err
	}
	return cayv1.GetAllUsage200JSONResponse{UsageJSONResponse: wireUsage(report, q)}, nil
}

func usageQuery(from, to *time.Time, group, format, accept *string) (q usage.Query, asCSV bool, err error) {
	q = usage.Query{From: value(from, time.Time{}), To: value(to, time.Time{})}
	if text := value(group, ""); text != "" {
		for by := range strings.SplitSeq(text, ",") {
			if by = strings.TrimSpace(by); !slices.Contains(q.By, by) {
				q.By = append(q.By, by)
			}
		}
	}
	switch value(format, "") {
	case "":
		for part := range strings.SplitSeq(value(accept, ""), ",") {
			kind, _, _ := mime.ParseMediaType(part)
			asCSV = asCSV || kind == "text/csv"
		}
	case "csv":
		asCSV = true
	case "json":
	default:
		err = cay.Errorf(cay.Invalid, "format: must be json or csv")
	}
	return q, asCSV, err
}

func wireUsage(r usage.Report, q usage.Query) cayv1.UsageJSONResponse {
	out := cayv1.UsageJSONResponse{
		From: r.From, To: r.To, Currency: pointer(r.Currency), Rows: []cayv1.UsageRow{}, Total: wireAmounts(r.Total, r.Currency),
	}
	for _, s := range r.Sums {
		row := wireAmounts(s.Amounts, r.Currency)
		for _, by := range q.By {
			switch by {
			case usage.ByTeam:
				row.TeamID = new(string(s.Team))
			case usage.ByKey:
				row.KeyID = new(string(s.Key))
			case usage.ByTemplate:
				row.TemplateID = new(string(s.Template))
			case usage.ByDay, usage.ByHour:
				row.At = new(s.At)
			default:
				row.Labels = &s.Labels
			}
		}
		out.Rows = append(out.Rows, row)
	}
	return out
}

// wireAmounts is a row with amounts alone. The count is exact; the number on
// the wire is the nearest one that JSON's readers know.
func wireAmounts(a cay.Amounts, currency string) cayv1.UsageRow {
	row := cayv1.UsageRow{Amounts: map[string]float64{}}
	for _, m := range cay.Meters() {
		if m.Meter != cay.Money {
			row.Amounts[string(m.Meter)] = float64(a.Of(m.Meter)) / float64(m.PerUnit)
		} else if currency != "" {
			row.Money = new(m.Format(a.Money))
		}
	}
	return row
}

// usageCSV writes sums as a table; without groups it has one line, the total.
func usageCSV(r usage.Report, q usage.Query) (out cayv1.UsageTextCsvResponse, err error) {
	var text bytes.Buffer
	w := csv.NewWriter(&text)
	head := slices.Clone(q.By)
	for _, m := range cay.Meters() {
		head = append(head, string(m.Meter))
	}
	_ = w.Write(append(head, "currency"))
	sums := r.Sums
	if len(q.By) == 0 {
		sums = []usage.Sum{{Amounts: r.Total}}
	}
	for _, s := range sums {
		var cells []string
		for _, by := range q.By {
			cells = append(cells, cellOf(s, by))
		}
		for _, m := range cay.Meters() {
			cells = append(cells, m.Format(s.Amounts.Of(m.Meter)))
		}
		_ = w.Write(append(cells, r.Currency))
	}
	w.Flush() // it cannot fail: a buffer takes all
	return cayv1.UsageTextCsvResponse{Body: io.NopCloser(&text), ContentLength: int64(text.Len())}, w.Error()
}

func cellOf(s usage.Sum, by string) string {
	switch by {
	case usage.ByTeam:
		return string(s.Team)
	case usage.ByKey:
		return string(s.Key)
	case usage.ByTemplate:
		return string(s.Template)
	case usage.ByDay, usage.ByHour:
		return s.At.Format(time.RFC3339)
	}
	_, label, _ := strings.Cut(by, ":")
	return s.Labels[label]
}

// GetPrices says what the meters cost.
func (o own) GetPrices(ctx context.Context, _ cayv1.GetPricesRequestObject) (cayv1.GetPricesResponseObject, error) {
	p, err := o.usage.Prices(ctx, callerOf(ctx))
	return cayv1.GetPrices200JSONResponse(wirePrices(p)), err
}

// SetPrices replaces the prices of this installation.
func (o own) SetPrices(ctx context.Context, r cayv1.SetPricesRequestObject) (cayv1.SetPricesResponseObject, error) {
	p := cay.Prices{Currency: r.Body.Currency, Units: map[cay.Meter]int64{}}
	for _, meter := range slices.Sorted(maps.Keys(r.Body.Prices)) {
		price, err := cay.ParsePrice(r.Body.Prices[meter])
		if err != nil {
			return nil, cay.Wrap(cay.Invalid, err, "prices: %.40s: %s", meter, wireError(err).Message)
		}
		p.Units[cay.Meter(meter)] = price
	}
	if err := o.usage.SetPrices(ctx, callerOf(ctx), p); err != nil {
		return nil, err
	}
	return cayv1.SetPrices200JSONResponse(wirePrices(p)), nil
}

func wirePrices(p cay.Prices) cayv1.Prices {
	out := cayv1.Prices{Currency: p.Currency, Prices: map[string]string{}}
	for meter, price := range p.Units {
		out.Prices[string(meter)] = cay.FormatPrice(price)
	}
	return out
}

// GetUsageLabels lists the keys of metadata that are metered.
func (o own) GetUsageLabels(ctx context.Context, _ cayv1.GetUsageLabelsRequestObject) (cayv1.GetUsageLabelsResponseObject, error) {
	labels, err := o.usage.Labels(ctx, callerOf(ctx))
	return cayv1.GetUsageLabels200JSONResponse{Labels: append([]string{}, labels...)}, err
}

// SetUsageLabels replaces them.
func (o own) SetUsageLabels(ctx context.Context, r cayv1.SetUsageLabelsRequestObject) (cayv1.SetUsageLabelsResponseObject, error) {
	labels, err := o.usage.SetLabels(ctx, callerOf(ctx), r.Body.Labels)
	return cayv1.SetUsageLabels200JSONResponse{Labels: append([]string{}, labels...)}, err
}

// ListBudgets lists a team's budgets.
func (o own) ListBudgets(ctx context.Context, _ cayv1.ListBudgetsRequestObject) (cayv1.ListBudgetsResponseObject, error) {
	all, err := o.usage.Budgets(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := cayv1.ListBudgets200JSONResponse{}
	for _, b := range all {
		out = append(out, wireBudget(b))
	}
	return out, nil
}

// CreateBudget makes a budget.
func (o own) CreateBudget(ctx context.Context, r cayv1.CreateBudgetRequestObject) (cayv1.CreateBudgetResponseObject, error) {
	b := r.Body
	spec := usage.Spec{
		Name: value(b.Name, ""), Key: cay.KeyID(value(b.KeyID, "")), Meter: cay.Meter(b.Meter), Limit: b.Limit,
		Period: cay.Period(b.Period), Action: cay.BudgetAction(value(b.Action, "")),
	}
	if b.Metadata != nil {
		if len(*b.Metadata) != 1 {
			return nil, cay.Errorf(cay.Invalid, "metadata: a budget is of one entry")
		}
		for spec.Label, spec.Value = range *b.Metadata {
			if spec.Label == "" {
				return nil, cay.Errorf(cay.Invalid, "metadata: the key is empty")
			}
		}
	}
	state, err := o.usage.AddBudget(ctx, callerOf(ctx), spec)
	return cayv1.CreateBudget201JSONResponse(wireBudget(state)), err
}

// GetBudget describes a budget.
func (o own) GetBudget(ctx context.Context, r cayv1.GetBudgetRequestObject) (cayv1.GetBudgetResponseObject, error) {
	state, err := o.usage.Budget(ctx, callerOf(ctx), cay.BudgetID(r.BudgetID))
	return cayv1.GetBudget200JSONResponse(wireBudget(state)), err
}

// UpdateBudget changes a budget.
func (o own) UpdateBudget(ctx context.Context, r cayv1.UpdateBudgetRequestObject) (cayv1.UpdateBudgetResponseObject, error) {
	change := usage.Change{Name: r.Body.Name, Limit: r.Body.Limit}
	if r.Body.Action != nil {
		change.Action = new(cay.BudgetAction(*r.Body.Action))
	}
	state, err := o.usage.ChangeBudget(ctx, callerOf(ctx), cay.BudgetID(r.BudgetID), change)
	return cayv1.UpdateBudget200JSONResponse(wireBudget(state)), err
}

// RemoveBudget removes a budget.
func (o own) RemoveBudget(ctx context.Context, r cayv1.RemoveBudgetRequestObject) (cayv1.RemoveBudgetResponseObject, error) {
	if err := o.usage.RemoveBudget(ctx, callerOf(ctx), cay.BudgetID(r.BudgetID)); err != nil {
		return nil, err
	}
	return cayv1.RemoveBudget204Response{}, nil
}

func wireBudget(s usage.State) cayv1.Budget {
	b := s.Budget
	out := cayv1.Budget{
		ID: string(b.ID), Name: pointer(b.Name), KeyID: pointer(string(b.Key)), Meter: string(b.Meter), Limit: s.LimitText, Period: string(b.Period),
		Action: string(b.Action), Used: s.UsedText, Percent: int32(s.Percent), Exhausted: s.Exhausted, CreatedAt: b.CreatedAt,
		CreatedBy: pointer(string(b.CreatedBy)), ResetsAt: pointer(s.Resets),
	}
	if b.Label != "" {
		out.Metadata = &map[string]string{b.Label: b.Value}
	}
	return out
}
