-- 0.6 % of the orders: those of two weeks.
SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM orders, customer, lineitem, supplier, nation, region
WHERE o_orderdate >= '1994-01-01'
    AND o_orderdate < '1994-01-15'
    AND c_custkey = o_custkey
    AND l_orderkey = o_orderkey
    AND s_suppkey = l_suppkey
    AND s_nationkey = c_nationkey
    AND n_nationkey = s_nationkey
    AND r_regionkey = n_regionkey
    AND r_name = 'ASIA'
GROUP BY n_name
ORDER BY revenue DESC
