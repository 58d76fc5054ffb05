-- 0.3 % of the orders: those of a week.
SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name, c_address, c_phone, c_comment
FROM orders, customer, lineitem, nation
WHERE o_orderdate >= '1993-10-01'
    AND o_orderdate < '1993-10-08'
    AND c_custkey = o_custkey
    AND l_orderkey = o_orderkey
    AND l_returnflag = 'R'
    AND n_nationkey = c_nationkey
GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
ORDER BY revenue DESC, c_custkey
LIMIT 20
